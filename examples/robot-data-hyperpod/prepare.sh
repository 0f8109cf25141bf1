#!/bin/bash
# A robot dataset for GR00T: from the Hub, or a folder, through all checks into the bucket and onto the shared file system.
#
#   prepare.sh lerobot/svla_so101_pickplace s3://my-bucket/datasets /fsx/datasets
#   prepare.sh ./so101 s3://my-bucket/datasets /fsx/datasets so101.txt
#
# Run it again after a stop: each step goes on where it was. Status 3: the dataset has errors, which are listed.
set -euo pipefail

source=${1:?usage: prepare.sh DATASET BUCKET-URL DIRECTORY [MODALITY]}
bucket=${2:?usage: prepare.sh DATASET BUCKET-URL DIRECTORY [MODALITY]}
directory=${3:?usage: prepare.sh DATASET BUCKET-URL DIRECTORY [MODALITY]}
modality=${4:-}
work=${WORK:-work}
name=$(basename "$source")

mkdir -p "$work"
# The version tag that LeRobot itself would take, at one commit.
if [ ! -d "$source" ]; then
  millrace lerobot download "$source" --out "$work/$name-raw"
  source=$work/$name-raw
fi
millrace lerobot inspect "$source"
# What the recorder left wrong and the files themselves decide: on a copy, so that yours stays as it is.
millrace sync "$source" "$work/$name-mended"
millrace lerobot repair "$work/$name-mended"

# GR00T reads v2.1 with modality.json and statistics of its own. The result is validated, or it gets no name.
if [ ! -d "$work/$name" ]; then
  millrace lerobot convert "$work/$name-mended" "$work/$name" --to groot ${modality:+--modality "$modality"}
fi
millrace lerobot stats "$work/$name" --groot --horizon 16 --write
millrace lerobot validate "$work/$name" --groot --groot-version 1.7 --policy-horizon 16 --deep

# Into the bucket with proof, and from there to the file system: what FSx calls a data repository association.
millrace stage "$work/$name" "$bucket/$name" --create-bucket
mkdir -p "$directory"
if ! millrace link status --json | grep -q '"name":"datasets"'; then
  millrace link add "$directory" "$bucket" --name datasets --import new,changed --export none
fi
millrace link run datasets --once
millrace verify "$bucket/$name" "$directory/$name"
millrace lerobot validate "$directory/$name" --groot --groot-version 1.7 --policy-horizon 16
