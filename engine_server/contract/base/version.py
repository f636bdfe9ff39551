"""The version of this release, from which the distribution is built and which all programs report."""

VERSION = "0.3.0"
