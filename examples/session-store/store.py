"""A session store: what a web shop keeps of each visitor, in a cluster of Quorate with engine zeus.

A visitor's cookie names a session: the backend that serves it, its cart, and a quota of requests. All keys
of a session have the cookie as their hash tag, so they are one unit, which moves to the node that its
backend talks to. Each request is one MULTI.
"""

import random
import time

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

#: Seconds for which a request is tried.
PATIENCE = 10
#: Requests of a session.
QUOTA = 1000
#: Seconds without a request after which a session is gone.
LIFETIME = 3600


class QuotaExhausted(Exception):
    """The session has made all its requests."""


class Backend:
    """A web server. It talks to one node, and to another one while that does not serve."""

    def __init__(self, name, addresses, home):
        self.name = name
        self.addresses = addresses
        self.home = home
        options = {"decode_responses": True, "socket_timeout": 5, "socket_connect_timeout": 1}
        # A node that does not answer is not asked again for seconds: another one is asked.
        options["retry"] = Retry(NoBackoff(), 0)
        self.clients = [redis.Redis(host, port, **options) for host, port in addresses]

    def add_to_cart(self, cookie, request, item):
        """Puts an item into a cart, once for each request, however often that is sent. Returns the cart."""
        session, cart, quota = (f"{{{cookie}}}{part}" for part in ("session", "cart", "quota"))

        def once(pipe):
            # The keys are watched: EXEC fails if any of them has changed since.
            last, left = pipe.hget(session, "request"), pipe.get(quota)
            if left is not None and int(left) <= 0:
                raise QuotaExhausted(cookie)
            pipe.multi()
            if last != request:
                pipe.hset(session, mapping={"backend": self.name, "request": request})
                pipe.hincrby(cart, item, 1)
                pipe.set(quota, QUOTA, nx=True)
                pipe.decr(quota)
                for key in (session, cart, quota):
                    pipe.expire(key, LIFETIME)
            pipe.hgetall(cart)

        answers = self.somewhere(lambda client: client.transaction(once, session, quota))
        return {item: int(count) for item, count in answers[-1].items()}

    def session(self, cookie):
        """The backend, cart and quota of a session, as of one moment."""

        def read(client):
            pipe = client.pipeline(transaction=True)
            pipe.hget(f"{{{cookie}}}session", "backend").hgetall(f"{{{cookie}}}cart")
            return pipe.get(f"{{{cookie}}}quota").execute()

        backend, cart, quota = self.somewhere(read)
        return backend, {item: int(count) for item, count in cart.items()}, int(quota or QUOTA)

    def placement(self, cookie):
        """Where a session lives: owner, address, readers, moves and pin."""
        told = self.somewhere(lambda client: client.execute_command("PLACEMENT GET", f"{{{cookie}}}cart"))
        return told if isinstance(told, dict) else dict(zip(told[::2], told[1::2]))

    def pin(self, cookie, node):
        """Keeps a session at a node, whichever backend serves it."""
        return self.somewhere(lambda client: client.execute_command("PLACEMENT PIN", cookie, node))

    def unpin(self, cookie):
        return self.somewhere(lambda client: client.execute_command("PLACEMENT UNPIN", cookie))

    def somewhere(self, act):
        """Acts on the home node, or on others while that does not serve.

        What may have happened is done again all the same: a request has a name, which is stored with what
        it did.
        """
        deadline, at = time.monotonic() + PATIENCE, self.home
        while True:
            try:
                return act(self.clients[at])
            except redis.ResponseError as error:
                code = str(error).split(" ", 1)[0]
                if code not in ("TRYAGAIN", "CLUSTERDOWN", "UNKNOWN", "EXECABORT") or time.monotonic() > deadline:
                    raise
            except (redis.ConnectionError, redis.TimeoutError):
                if time.monotonic() > deadline:
                    raise
            at = (at + 1) % len(self.clients)
            time.sleep(random.uniform(0, 0.02))
