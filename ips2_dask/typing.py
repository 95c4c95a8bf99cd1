"""NumPy arrays by dtype, as annotations name them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
Bool = NDArray[np.bool_]
Float = NDArray[np.floating]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Integer = NDArray[np.integer]
UInt8 = NDArray[np.uint8]
UInt64 = NDArray[np.uint64]
