"""The one room that names backends: what `keras.ops` lacks, with its reason.

Whatever needs Keras imports this package, which registers the library's classes.
"""
