"""Lower a kernel of the book on TIRx, in the Python that has the TVM it is written for.

A job (JSON, standard input): pages (of the book, in order), function (that makes the kernel), args (its arguments). The
pages' imports and constants are run as they stand, and the block of code that holds the function; nothing is changed.
Out comes JSON: the front end's plan of the host part and the CUDA C++ of the device part.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tempfile
from pathlib import Path

from tensorladder.frontends.tirx import lower

ARCH = "sm_100a"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
_CONSTANT = re.compile(r"^[A-Z_]+ = \d+.*$", re.M)


def source(pages: list[str], function: str) -> str:
    """What of the pages the function needs: imports, constants, and its block."""
    blocks = [block for page in pages for block in _BLOCK.findall(Path(page).read_text(encoding="utf-8"))]
    imports = [block for block in blocks if block.lstrip().startswith("import tvm")]
    constants = [line for block in blocks for line in _CONSTANT.findall(block)]
    (kernel,) = (block for block in blocks if re.search(rf"^def {function}\(", block, re.M))
    return "\n".join([*imports, *constants, kernel])


def main() -> None:
    """Do the job that standard input says."""
    job = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "book.py"  # TVM reads a kernel's source from its file
        path.write_text(source(job["pages"], job["function"]), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("book", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["book"] = module
        spec.loader.exec_module(module)
        name, plan, text = lower(getattr(module, job["function"])(*job["args"]), ARCH)
    json.dump({"name": name, "plan": plan, "source": text}, sys.stdout)


if __name__ == "__main__":
    main()
