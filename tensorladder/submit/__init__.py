"""The verbs of the command line elsewhere: on an existing Ray cluster, or on Modal.

    job.py         what is asked for: a verb's arguments, fanned out into calls; what each call needs
    call.py        one call on the machine that it was given to: the command line in a process of its own
    on_ray.py      this side of a Ray cluster: sends the package and the job, reads events as they come
    ray_driver.py  the other side: hands calls to workers, gives those of a lost worker to another
    on_modal.py    the app for Modal, and the same events from it

Both places yield events, dicts with one key: `began`, `lost`, `done` or `waiting` (see `call.done` and `ray_driver`).
"""

from tensorladder.submit.job import Job, SubmitError

__all__ = ["Job", "SubmitError"]
