"""The place where a job's ranks meet, for launchers that are written in Python."""

from comity import _core


class Store:
    """The place where a job's ranks meet, and where processes wait that join later. ``comity launch`` runs one; start one in a launcher of
    your own, in a process that lives as long as the job.

    Each rank gets ``COMITY_RANK``, ``COMITY_SIZE``, ``COMITY_JOB``, the key (``COMITY_KEY_FILE``), and as ``COMITY_STORE`` the `address`. A
    process that is to join later gets ``COMITY_JOIN=1`` in place of rank and size.
    """

    def __init__(
        self,
        size: int,
        *,
        key: bytes,
        job: str,
        host: str = "127.0.0.1",
        port: int = 0,
        join_timeout: float = 60,
    ) -> None:
        """Start it.

        Args:
            size: How many ranks the job starts with.
            key: The job's secret, 32 bytes.
            job: The job's name.
            host: The address to listen at.
            port: The port to listen at; 0 stands for any.
            join_timeout: Seconds to wait for a rank that does not come.
        """
        self._raw = _core.Store(size, key, job, (host, port), join_timeout)

    @property
    def address(self) -> str:
        """Where it listens, as host:port."""
        return self._raw.address

    def close(self) -> None:
        """End it. The ranks go on, and nobody joins any more."""
        self._raw.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
