"""Scores of generated images: Fréchet distance, KID, precision and recall over features chosen by name."""

from .features import FeatureExtractor, extract, feature_extractor
from .frechet import Moments, frechet_distance
from .kid import KernelDistance, kernel_distance
from .precision_recall import PrecisionRecall, precision_recall
from .score import METRICS, Scores, evaluate_images, score_features

__all__ = [
    "METRICS",
    "FeatureExtractor",
    "KernelDistance",
    "Moments",
    "PrecisionRecall",
    "Scores",
    "evaluate_images",
    "extract",
    "feature_extractor",
    "frechet_distance",
    "kernel_distance",
    "precision_recall",
    "score_features",
]
