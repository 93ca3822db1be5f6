"""Record batches of sealed files: found in their files, read whole or in part, kept for a while.

layout   where the values of a batch lie in its file, and reads of some columns or rows of it
reader   random access to the batches of one file, with some of its columns; the batches that were read
         lately, and the files that several readers share
"""
