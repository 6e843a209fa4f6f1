"""What the scenario `celery` asks its worker for."""

import os

import redis
from celery import Celery, chain, chord

URL = os.environ.get("APPLICATION_URL", "redis://localhost/0")
app = Celery("tasks_celery", broker=URL, backend=URL)
app.conf.broker_connection_retry_on_startup = True


@app.task
def add(one, other):
    return one + other


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=5)
def flaky(self, key):
    tries = redis.Redis.from_url(URL).incr(key)
    if tries < 3:
        raise self.retry(countdown=0.1)
    return tries


def chain_of():
    return chain(add.s(2, 2), add.s(4), add.s(8))()


def chord_of():
    return chord([add.s(n, n) for n in range(10)])(total.s())
