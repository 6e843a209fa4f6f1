"""Three nodes of Quorate on this machine, each a process, with a keyspace of engine zeus."""

import os
import pathlib
import signal
import socket
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
COUNT = 3


def program():
    """The program that QUORATE names, or that was built."""
    if "QUORATE" in os.environ:
        return pathlib.Path(os.environ["QUORATE"])
    built = [path for path in (TARGET / "release/quorate", TARGET / "debug/quorate") if path.exists()]
    if not built:
        raise SystemExit(f"no quorate in {TARGET}: build it with cargo build, or name it in QUORATE")
    return built[0]


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Nodes:
    def __init__(self):
        self.program = program()
        self.directory = tempfile.TemporaryDirectory()
        ports = free_ports(3 * COUNT)
        self.addresses = [("127.0.0.1", port) for port in ports[:COUNT]]
        text = '[cluster]\nname = "session-store"\n'
        for node in range(COUNT):
            client, peer, admin = (f"127.0.0.1:{ports[node + COUNT * kind]}" for kind in range(3))
            text += f'[[node]]\nid = {node + 1}\nclient = "{client}"\npeer = "{peer}"\nadmin = "{admin}"\n'
        text += '[[keyspace]]\ndb = 0\nname = "sessions"\nengine = "zeus"\n'
        self.file = pathlib.Path(self.directory.name, "quorate.toml")
        self.file.write_text(text)
        self.processes = {node: self.start(node) for node in range(1, COUNT + 1)}
        for process in self.processes.values():
            self.await_ready(process)

    def start(self, node):
        command = [self.program, "serve", "--config", self.file, "--node", str(node)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def await_ready(self, process):
        for line in process.stdout:
            if line.startswith(b"ready"):
                return
        raise SystemExit("a node ended before it was ready")

    def kill(self, node):
        """As kill -9."""
        process = self.processes[node]
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()

    def restart(self, node):
        """Starts a node that was killed, and waits until it serves."""
        self.processes[node] = self.start(node)
        self.await_ready(self.processes[node])

    def close(self):
        for node, process in self.processes.items():
            if process.poll() is None:
                self.kill(node)
        self.directory.cleanup()
