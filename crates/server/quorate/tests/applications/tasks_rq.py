"""What the scenario `rq` asks its worker for."""


def square(number):
    return number * number


def fail():
    raise ValueError("on purpose")
