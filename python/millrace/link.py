# SPDX-License-Identifier: Apache-2.0
"""Controls links from Python: their status, the barrier, and released files. The command `millrace link` makes (`add`)
and runs (`run`) links.

millrace.link.wait("/fsx/run1/step-1000", timeout=600)     # proven to be in the bucket
millrace.link.status("/fsx/run1")["behind_s"]              # for how long the oldest known change waits
millrace.link.release("/fsx/datasets", older_than=3 * 86400)
millrace.link.restore("/fsx/datasets", order=shards)
"""

from __future__ import annotations

from millrace._arguments import plain as _plain
from millrace._core import link_release as _release
from millrace._core import link_restore as _restore
from millrace._core import link_status as _status
from millrace._core import link_statuses as _statuses
from millrace._core import link_wait as _wait

release = _plain(_release, "release")
restore = _plain(_restore, "restore")
status = _plain(_status, "status")
statuses = _plain(_statuses, "statuses")
wait = _plain(_wait, "wait")

__all__ = ["release", "restore", "status", "statuses", "wait"]
