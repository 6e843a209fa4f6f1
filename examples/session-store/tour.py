"""The tour of docs/src/session-store.md: python3 tour.py. It checks what it tells."""

import collections
import random
import sys
import threading
import time

from nodes import COUNT, Nodes
from store import QUOTA, Backend

#: Sessions that make requests while a node is killed, and how many each makes.
VISITORS, REQUESTS = 20, 40


def shown(placement):
    pinned = placement["pinned"]
    text = f"owner {placement['owner']}, moves {placement['moves']}"
    return text if pinned is None else f"{text}, pinned to {pinned}"


def sums(infos, name):
    return sum(int(info.get(name, 0)) for info in infos)


class Visitors:
    """Many visitors at once. Each counts what it was told, and whom it asked."""

    def __init__(self, backends, changes_backend):
        self.backends = backends
        self.changes_backend = changes_backend
        self.longest = 0
        self.failed = []
        self.carts = {}
        self.threads = [threading.Thread(target=self.visit, args=(number,)) for number in range(VISITORS)]

    def visit(self, number):
        draw, cookie = random.Random(number), f"visitor-{number}"
        cart, backend = collections.Counter(), self.backends[number % COUNT]
        try:
            for request in range(REQUESTS):
                if draw.random() < self.changes_backend:
                    backend = draw.choice(self.backends)
                item = draw.choice(["book", "pen", "lamp"])
                begun = time.monotonic()
                told = backend.add_to_cart(cookie, f"{number}.{request}", item)
                self.longest = max(self.longest, time.monotonic() - begun)
                cart[item] += 1
                assert told == dict(cart), f"{cookie} has {dict(cart)} and was told {told}"
                time.sleep(0.02)
            self.carts[cookie] = dict(cart)
        except Exception as error:
            self.failed.append(f"{cookie}: {error!r}")


def tour(out=sys.stdout):
    def say(text=""):
        print(text, file=out, flush=True)

    nodes = Nodes()
    try:
        backends = [Backend(f"web-{home + 1}", nodes.addresses, home) for home in range(COUNT)]
        web_1, web_2, web_3 = backends

        say("A session lives where its visitor's requests arrive.")
        web_1.add_to_cart("ann", "1", "book")
        say(f"  web-1 adds a book:   {shown(web_1.placement('ann'))}")
        assert web_1.placement("ann")["owner"] == 1
        time.sleep(0.2)
        for request in ("2", "3"):
            cart = web_2.add_to_cart("ann", request, "pen")
        say(f"  web-2 adds two pens: {shown(web_2.placement('ann'))}, cart {cart}")
        assert web_2.placement("ann")["owner"] == 2
        backend, cart, quota = web_3.session("ann")
        say(f"  web-3 reads:         backend {backend}, cart {cart}, quota {quota}")
        assert (backend, cart, quota) == ("web-2", {"book": 1, "pen": 2}, QUOTA - 3)

        say("A request that is sent twice counts once.")
        cart = web_1.add_to_cart("ann", "3", "pen")
        say(f"  web-1 repeats it:    cart {cart}")
        assert cart == {"book": 1, "pen": 2}

        say("A pinned session stays, whichever backend has its visitor.")
        assert web_1.pin("bob", 3) in ("OK", True)
        for request, backend in enumerate(backends):
            backend.add_to_cart("bob", str(request), "lamp")
        say(f"  three backends add:  {shown(web_1.placement('bob'))}")
        assert web_1.placement("bob")["owner"] == 3

        say(f"Node 3 is killed while {VISITORS} visitors shop.")
        visitors = Visitors(backends, changes_backend=0.05)
        for thread in visitors.threads:
            thread.start()
        time.sleep(0.3)
        nodes.kill(3)
        for thread in visitors.threads:
            thread.join()
        assert not visitors.failed, visitors.failed
        for cookie, cart in visitors.carts.items():
            assert web_1.session(cookie)[1] == cart, cookie
        say(f"  {VISITORS * REQUESTS} requests, and every cart is right; the longest took {visitors.longest:.2f} s")
        cart = web_3.add_to_cart("bob", "killed", "lamp")
        placement = web_1.placement("bob")
        say(f"  bob goes on:         {shown(placement)}, cart {cart}")
        assert placement["owner"] != 3 and placement["pinned"] == 3 and cart == {"lamp": 4}

        say("Node 3 is back.")
        nodes.restart(3)
        web_1.add_to_cart("bob", "back", "lamp")
        say(f"  web-1 adds a lamp:   {shown(web_1.placement('bob'))}")
        assert web_1.placement("bob")["owner"] == 3
        assert (web_1.unpin("bob"), web_1.unpin("bob")) == (1, 0)

        say("What the nodes say of it (INFO placement).")
        infos = [client.info("placement") for client in web_1.clients]
        assert all("key_moves" in info for info in infos), infos
        for node, info in enumerate(infos, 1):
            say(f"  node {node}: {info['local_updates_percent']} % of updates local, {info['key_moves']} moves seen")
        return infos
    finally:
        nodes.close()


if __name__ == "__main__":
    tour()
