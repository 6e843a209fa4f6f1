"""Quorate's client: redis-py over all nodes of a cluster, with commands that take effect exactly
once. `quorate.asyncio` has the same with asyncio."""

from .calls import Call
from .client import Client, Pipeline, Transaction
from .errors import Error, Failed, Unknown
from .lock import AsyncLock, Lock

__all__ = ["AsyncLock", "Call", "Client", "Error", "Failed", "Lock", "Pipeline", "Transaction", "Unknown"]
__version__ = "0.1.0"
