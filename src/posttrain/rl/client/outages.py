"""A dataserver that cannot be asked."""

from posttrain.errors import ServerError


class Outage(ServerError):
    """The dataserver could not be asked, by one rank at least, and training may not go on without it."""
