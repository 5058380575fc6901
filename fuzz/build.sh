#!/bin/bash -eu
# Builds every target in the image of OSS-Fuzz, with the corpus of the tests as seeds.
cd "$SRC/eaglenet"
pip3 install --constraint constraints.txt .
cd fuzz
for name in $(python3 targets.py); do
  cp fuzz_target.py "fuzz_$name.py"
  compile_python_fuzzer "fuzz_$name.py" --add-data "targets.py:."
done
seeds() { # target, folders of the corpus
  local name=$1; shift
  (cd ../tests/hostile/corpus && find "$@" -type f -print0 2>/dev/null | xargs -0 -r zip -q "$OUT/fuzz_${name}_seed_corpus.zip") || true
}
python3 - <<'END'
import os, zipfile
from seeds import sound_input
from targets import TARGETS
for name in TARGETS:
    with zipfile.ZipFile(f"{os.environ['OUT']}/fuzz_{name}_seed_corpus.zip", "w") as archive:
        archive.writestr("seed", sound_input(name))
END
seeds video video
seeds image picture-JPEG picture-PNG picture-WEBP picture-GIF picture-BMP picture-TIFF
seeds array_file npy
seeds tags tags
seeds merges merges-table merges.txt
seeds hub_config clip-config.json model-config.json
seeds openai_weights archive
