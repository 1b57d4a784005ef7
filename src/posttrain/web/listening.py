"""The address of a server: its socket, its URL, the names under which it may be asked, and its token."""

import errno
import os
import socket

from posttrain.config.sections.listen import ListenConfig
from posttrain.errors import ConfigError

_SHORTEST_TOKEN = 16


def token_of(listen: ListenConfig, name: str) -> str | None:
    """The token that requests must carry; None if there is none.

    Args:
        name: of the setting, for messages.

    Raises:
        ConfigError: the environment variable is not set, or its value is short.
    """
    if listen.token_env is None:
        return None
    token = os.environ.get(listen.token_env, "")
    if len(token) < _SHORTEST_TOKEN:
        state = "not set" if not token else f"shorter than {_SHORTEST_TOKEN} characters"
        raise ConfigError(
            f"{name}: the environment variable {listen.token_env} is {state}; set it to a long random "
            f"string, e.g. export {listen.token_env}=$(openssl rand -hex 32)"
        )
    return token


def bind(listen: ListenConfig) -> socket.socket:
    """A socket that listens; ConfigError if the address cannot be used."""
    try:
        family, _, _, _, address = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # from here on a second server is refused, and clients wait
    except OSError as error:
        hint = "; is another server running? --port 0 picks a free port" if error.errno == errno.EADDRINUSE else ""
        raise ConfigError(
            f"cannot listen on {listen.host} port {listen.port}: {error.strerror or error}{hint}"
        ) from None
    return listener


def url_of(listen: ListenConfig, listener: socket.socket) -> str:
    """The URL of a socket that `bind` made."""
    return f"http://{_host(listen)}:{listener.getsockname()[1]}"


def allowed_hosts(listen: ListenConfig) -> list[str] | None:
    """Names under which the server may be addressed, so that no web page can reach it under its own name; None is any.

    Other machines need a token, and may know the server by any name.
    """
    return ["localhost", "127.0.0.1", "[::1]", _host(listen)] if listen.is_loopback else None


def _host(listen: ListenConfig) -> str:
    return f"[{listen.host}]" if ":" in listen.host else listen.host
