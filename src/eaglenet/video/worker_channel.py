"""What a process and its worker send each other: requests with open files, and replies.

    channel.send(request, shared_file)
    while (buffers := channel.receive()) is None: ...   # wait for more bytes
    reply = unpack(reply_layout(layout_of(type)), buffers)

Requests are pickled. Replies come from a process that may be hostile and are binary messages
(:mod:`eaglenet.video.messages`) with limits on their size and time.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from eaglenet.core.errors import EagleNetError, VideoDecodeError
from eaglenet.core.text import without_surrogates
from eaglenet.video import messages
from eaglenet.video.input_file import SharedFile
from eaglenet.video.messages import MAX_BYTES, Layout, MessageError, Receiver, layout_of

CAN_SEND_FILES = hasattr(os, "readv")
"""True if connections are sockets, which can send descriptors; on Windows they are pipes."""
SEND_SECONDS = 10
"""Seconds within which a worker must accept a request."""
MESSAGE_SECONDS = 60.0
"""Seconds from the first to the last byte of a reply."""
MAX_REASON = 2000
"""Maximum characters of a failure's reason."""
CHUNK = 2**20

Request = TypeVar("Request")


@dataclass(frozen=True)
class Reply:
    """The reply of a worker: a result, or the reason why there is none."""

    result: Any = None
    reason: str | None = None


def reply_layout(result: Layout) -> Layout:
    """Return the layout of replies with results of the layout ``result``."""
    text = layout_of(str)

    def write(writer: messages.Writer, reply: Reply) -> None:
        writer.body.append(reply.reason is not None)
        if reply.reason is None:
            result.write(writer, reply.result)
        else:
            text.write(writer, reply.reason[:MAX_REASON])

    def read(reader: messages.Reader) -> Reply:
        if not messages.layout_of(bool).read(reader):
            return Reply(result.read(reader))
        return Reply(reason=valid_reason(text.read(reader)))

    return Layout(write, read)


def valid_reason(text: str) -> str:
    """Shorten a reason from a worker, and replace characters that cannot be stored."""
    return without_surrogates(text[:MAX_REASON])


def attempt(work: Callable[[Request], Any], request: Request) -> Reply:
    """Return the result of ``work`` on a request, or the reason for its failure."""
    try:
        return Reply(work(request))
    except VideoDecodeError as error:
        return Reply(reason=error.cause)
    except EagleNetError as error:
        return Reply(reason=str(error))
    except MemoryError:
        return Reply(reason="needs more memory than the limit for a file")
    except Exception as error:
        # One request must not end the run over all requests.
        if isinstance(error, OSError) and error.strerror:
            return Reply(reason=error.strerror)
        return Reply(reason=f"{type(error).__name__}: {error}")


def check_reply(check: Callable[[Any, Any], None] | None, request: Any, reply: Reply) -> None:
    """Raise ``MessageError`` if ``check`` refuses the result of a reply by a ``ValueError``."""
    if reply.reason is None and check is not None:
        try:
            check(request, reply.result)
        except ValueError as error:
            raise MessageError(str(error)) from error


class Channel:
    """Sends requests to a process and receives its replies without blocking."""

    def __init__(self, connection: Connection, max_bytes: int = MAX_BYTES) -> None:
        self.connection = connection
        self.max_bytes = max_bytes
        self._socket = _socket_of(connection)
        self._received_bytes = memoryview(b"")
        self._receiver = Receiver(self._read, max_bytes)
        self._began_at = 0.0

    def send(self, request: Any, shared_file: SharedFile | None = None) -> None:
        """Send a request; raise ``OSError`` if the process has ended or does not read."""
        if shared_file is None or self._socket is None:
            # On Windows the worker opens the file itself.
            self.connection.send_bytes(pickle.dumps((request, None)))
            return
        self.connection.send_bytes(pickle.dumps((request, replace(shared_file, descriptor=None))))
        if shared_file.descriptor is not None:
            socket.send_fds(self._socket, [b"f"], [shared_file.descriptor])

    def receive(self) -> list[Any] | None:
        """Read the available bytes; return the buffers of the reply if it is complete.

        Raises ``EOFError`` or ``OSError`` if the process has ended, ``MessageError`` if the bytes
        are not a message or arrive too slowly.
        """
        deadline = time.monotonic() + 0.1  # Other workers are waiting, too.
        while time.monotonic() < deadline:
            try:
                buffers = self._receiver.advance()
            except BlockingIOError:
                break
            if buffers is not None:
                self._receiver = Receiver(self._read, self.max_bytes)
                self._began_at = 0.0
                return buffers
            self._began_at = self._began_at or time.monotonic()
        self.require_speed()
        return None

    def require_speed(self) -> None:
        """Raise ``MessageError`` if a reply has begun and is not complete after the time limit."""
        if self._began_at and time.monotonic() - self._began_at > MESSAGE_SECONDS:
            raise MessageError("the reply takes too long")

    def _read(self, buffer: memoryview) -> int:
        if self._socket is not None:
            return self._socket.recv_into(buffer, 0, socket.MSG_DONTWAIT)
        if not len(self._received_bytes):
            if not self.connection.poll(0):
                raise BlockingIOError
            self._received_bytes = memoryview(self.connection.recv_bytes(2 * CHUNK))
        count = min(len(buffer), len(self._received_bytes))
        buffer[:count] = self._received_bytes[:count]
        self._received_bytes = self._received_bytes[count:]
        return count

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self.connection.close()


def _socket_of(connection: Connection) -> socket.socket | None:
    """Return a socket for a connection; None on Windows, where it is a pipe."""
    if not CAN_SEND_FILES:
        return None
    own = _duplicate(connection)
    # A hostile worker that does not read must not block the parent.
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", SEND_SECONDS, 0))
    return own


def _duplicate(connection: Connection) -> socket.socket:
    # With all three arguments Python needs no system call that a confined process may not make.
    kind = (socket.AF_UNIX, socket.SOCK_STREAM, 0)
    return socket.socket(*kind, fileno=os.dup(connection.fileno()))


def send_descriptor(connection: Connection, descriptor: int) -> None:
    """Send an open file or connection; the receiver gets a descriptor of its own."""
    with _duplicate(connection) as carrier:
        socket.send_fds(carrier, [b"f"], [descriptor])


def receive_descriptor(connection: Connection) -> int:
    """Return the descriptor that comes next; raise ``EOFError`` if none comes."""
    with _duplicate(connection) as carrier:
        _, descriptors, _, _ = socket.recv_fds(carrier, 1, 1)
    if len(descriptors) != 1:
        raise EOFError
    return descriptors[0]


def write_bytes(connection: Connection, content: memoryview) -> None:
    """Write bytes without a header."""
    while len(content):
        if not CAN_SEND_FILES:
            connection.send_bytes(content[:CHUNK])
            content = content[CHUNK:]
        else:
            content = content[os.write(connection.fileno(), content) :]
