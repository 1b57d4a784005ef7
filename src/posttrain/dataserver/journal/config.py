"""Config section `journal`: where the journal is kept, and how much of it."""

from pathlib import Path

from pydantic import Field, field_validator

from posttrain.config.strict import ConfigPath, StrictModel

_DRIVER = "postgresql+psycopg"


class JournalConfig(StrictModel):
    """A database that stores every graded completion: SQLite in a file, or PostgreSQL by its URL."""

    enabled: bool = True
    """Whether graded completions are stored at all."""

    path: ConfigPath = Path("journal.sqlite")
    """File of the SQLite database, if `url` is null. It must be on a local disk, not on a network share."""

    url: str | None = None
    """PostgreSQL database to use instead of the file, such as `postgresql+psycopg://user@host/database`; the password
    comes from the environment variable PGPASSWORD or from ~/.pgpass."""

    max_completion_chars: int = Field(default=20_000, ge=200)
    """How many characters of a completion are stored; of a longer one, the beginning and the end."""

    batch_seconds: float = Field(default=0.5, ge=0, le=60)
    """Rows are written at least this often; newer ones are lost if the server is killed."""

    max_queued_rows: int = Field(default=20_000, ge=1)
    """Maximum number of rows waiting in memory while the database cannot be written to; beyond it, new ones are dropped
    and counted."""

    @field_validator("url")
    @classmethod
    def _postgresql_without_a_password(cls, url: str | None) -> str | None:
        if url is None:
            return None
        try:
            from sqlalchemy.engine import make_url
            from sqlalchemy.exc import ArgumentError
        except ImportError:
            raise ValueError("a database needs SQLAlchemy: pip install 'posttrain-toolkit[server]'") from None
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):
            raise ValueError(f"not a database URL; write {_DRIVER}://user@host/database") from None
        # libpq also accepts sslpassword and oauth_client_secret.
        secrets = [key for key in parsed.query if key.endswith(("password", "secret"))]
        if parsed.password is not None or "password" in secrets:
            raise ValueError(
                "the URL contains a password; remove it, and set the environment variable PGPASSWORD instead"
            )
        if secrets:
            raise ValueError(f"the URL contains a secret ({secrets[0]}); remove it, and use a libpq service file")
        if parsed.drivername != _DRIVER or not parsed.database:
            raise ValueError(
                f"the journal is stored in PostgreSQL, {_DRIVER}://user@host/database, or without a url in the SQLite "
                "file `path`"
            )
        return url
