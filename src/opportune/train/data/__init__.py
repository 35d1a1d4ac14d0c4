"""Images in, batches out: decoding, sources, the order of the data, and the loader.

``open_source`` turns a short text such as ``"folder:photos"`` into a source; ``Order`` says which example
comes when; ``Loader`` brings the two together and hands out ``Batch`` after ``Batch``, the same at any
number of loader workers and, read together, the same at any number of ranks.
"""

from opportune.train.data.decode import decode_image
from opportune.train.data.errors import BadImage, DataError, NoSuchSplit, WorkerDied
from opportune.train.data.latents import LatentSource
from opportune.train.data.latents_writer import write_latents
from opportune.train.data.loader import Batch, Loader
from opportune.train.data.lots import StreamOrder
from opportune.train.data.order import Order
from opportune.train.data.sources import Example, FolderSource, InOrder, Source, StreamSource, TensorSource, hold_out
from opportune.train.data.spec import GRAMMAR, open_source

__all__ = [
    "GRAMMAR",
    "BadImage",
    "Batch",
    "DataError",
    "Example",
    "FolderSource",
    "InOrder",
    "LatentSource",
    "Loader",
    "NoSuchSplit",
    "Order",
    "Source",
    "StreamOrder",
    "StreamSource",
    "TensorSource",
    "WorkerDied",
    "decode_image",
    "hold_out",
    "open_source",
    "write_latents",
]
