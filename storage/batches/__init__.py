"""Record batches of sealed files: located in their files, read whole or in part, and cached.

layout   the byte ranges of a batch's values in its file, and reads of single columns or rows
reader   random access to the batches of one file, and the cache of recently read batches and open files
"""
