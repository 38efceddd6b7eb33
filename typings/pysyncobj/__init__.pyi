# What node/raft and the benchmark use of PySyncObj 0.3.17, which has no annotations of its own. Private
# members stand under their mangled names, the only ones by which a subclass can reach or override them.
from .config import FAIL_REASON as FAIL_REASON
from .config import SERIALIZER_STATE as SERIALIZER_STATE
from .config import SyncObjConf as SyncObjConf
from .journal import createJournal as createJournal
from .syncobj import _COMMAND_TYPE as _COMMAND_TYPE
from .syncobj import _RAFT_STATE as _RAFT_STATE
from .syncobj import SyncObj as SyncObj
from .syncobj import SyncObjConsumer as SyncObjConsumer
from .syncobj import SyncObjException as SyncObjException
from .syncobj import replicated as replicated
