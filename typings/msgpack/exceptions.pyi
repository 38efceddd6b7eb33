from . import BufferFull as BufferFull
from . import ExtraData as ExtraData
from . import FormatError as FormatError
from . import OutOfData as OutOfData
from . import StackError as StackError
from . import UnpackException as UnpackException
from . import UnpackValueError as UnpackValueError
