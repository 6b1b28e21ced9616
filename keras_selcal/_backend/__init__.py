"""The one room that names backends: what `keras.ops` lacks, with its reason."""
