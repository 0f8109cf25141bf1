_core.__prefix__:
    class CorruptionError(OSError):
        """Bytes are not what they were said to be: a damaged or changed file."""

    class Cancelled(Exception):
        """The operation was stopped, or its object closed."""

    __version__: str

