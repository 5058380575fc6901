"""Write files to a store, one commit each, and report each; killed by tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "store"))

from made_store import changes_of, make_manifest

from eaglenet.cluster import log as lease
from eaglenet.cluster.bucket import BucketStore

lease.LEASE_SECONDS = 1.5
location, count = sys.argv[1], int(sys.argv[2])
with BucketStore.write(location, make_manifest()) as writer:
    print("open", flush=True)
    for number in range(count):
        writer.commit(changes_of(number))
        print(number, flush=True)
    writer.finish()
