"""The mathematics of the theorems: objectives, spectra, iterates."""
