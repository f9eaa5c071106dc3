"""What kvblocks raises. Every message names the call or field, its value, the limit, and the way out."""


class KVBlocksError(Exception):
    """Any error of kvblocks. After it, nothing has changed."""


class InvalidArgumentError(KVBlocksError, ValueError):
    """An argument that cannot be: the message names it, its value and the limit."""


class NotFoundError(KVBlocksError, LookupError):
    """There is nothing of that name or number."""


class ResourceExhaustedError(KVBlocksError, MemoryError):
    """More blocks or memory than there are. A step that does not fit now is no error: it answers None."""


class InvariantError(KVBlocksError, AssertionError):
    """``check_invariants`` found what cannot be: a bug of kvblocks, or memory was overwritten."""


class StaleBlockTableError(KVBlocksError, RuntimeError):
    """A block table of a request that has given its blocks back in the meantime."""


class ConcurrentUseError(KVBlocksError, RuntimeError):
    """A call while another thread is in a long call of the same manager."""


class CommandError(KVBlocksError, RuntimeError):
    """A command of the simulator that ended otherwise than done.

    Attributes:
        exit_status: as the command would have ended: 1 a limit was missed, 2 bad input or options,
            3 no progress, 4 an internal check failed.
    """

    def __init__(self, message: str, exit_status: int = 2) -> None:
        super().__init__(message)
        self.exit_status = exit_status
