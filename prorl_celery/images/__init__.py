"""Container images: how they are called, built and pulled, and where they are kept.

`names.image_path` says where the image of a name is, `names.image_of` which one a SWE instance wants: that is what
handlers ask. `build` and `pull` make images; the command line and tests call them. Whether a sandbox can start from an
image is told by `prorl_celery.sandbox.image_check`.
"""
