"""The addresses of a cluster, as its users write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

#: "host:port", "[address]:port", "host" (port 6379), or a pair.
Node = str | tuple[str, int]

PORT = 6379


def parse(node: Node) -> tuple[str, int]:
    """Host and port; raises ValueError."""
    if isinstance(node, tuple):
        return node
    parts = urlsplit(f"//{node}")
    if not parts.hostname or parts.path or parts.username:
        raise ValueError(f"{node!r} is no address of a node; write host:port")
    return parts.hostname, PORT if parts.port is None else parts.port


def parse_all(host: str, port: int, nodes: Sequence[Node] | None) -> list[tuple[str, int]]:
    """All addresses: `nodes` if there are some, otherwise the only one."""
    if isinstance(nodes, str):
        nodes = nodes.split(",")
    if nodes is not None and not nodes:
        raise ValueError("a client needs at least one node")
    return [parse(node) for node in nodes] if nodes else [(host, port)]


def split_url(url: str) -> list[str]:
    """The URLs of a URL with several hosts: redis://user:password@a:6379,b:6379/0"""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    return [urlunsplit(parts._replace(netloc=f"{user}{at}{host}")) for host in hosts.split(",")]


def take_retry(options: dict[str, Any]) -> Any:
    """Takes redis-py's options about trying again out of these, and gives `retry`. Raises TypeError for
    an option that would have no effect."""
    if options.get("single_connection_client"):
        raise TypeError("single_connection_client has no effect: a client has connections to several nodes")
    for name in ("cache", "cache_config"):
        if options.get(name):
            raise TypeError(f"{name} has no effect here: read through a redis.Redis that has a cache")
    # Whatever failed is tried again anyhow, under its number.
    for name in ("retry_on_timeout", "retry_on_error"):
        options.pop(name, None)
    return options.pop("retry", None)
