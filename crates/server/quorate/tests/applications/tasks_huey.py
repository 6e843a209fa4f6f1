"""What the scenario `huey` asks its consumer for."""

from huey import RedisHuey


def make(url):
    global add
    huey = RedisHuey("applications", url=url)

    @huey.task(retries=1)
    def add(one, other):
        return one + other

    return huey
