"""TFDV's statistics of numbers that were measured here, so that they are compared with a snapshot's like with like."""

import warnings
from collections.abc import Mapping

import numpy as np
import pandas as pd
from tensorflow_metadata.proto.v0 import statistics_pb2


def of(values: Mapping[str, np.ndarray]) -> statistics_pb2.DatasetFeatureStatisticsList:
    """Statistics of some features.

    Args:
        values: Feature -> int [n], at least one of each; the same n for all.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what packages say of each other
        import tensorflow_data_validation as tfdv

        return tfdv.generate_statistics_from_dataframe(pd.DataFrame(dict(values)), n_jobs=1)
