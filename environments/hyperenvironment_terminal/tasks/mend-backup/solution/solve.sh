#!/bin/bash
cat > /app/backup.sh <<'END'
#!/bin/bash
set -euo pipefail
source=$1 target=$2
if [ ! -d "$source" ]; then
    echo "$source is no directory" >&2
    exit 2
fi
mkdir -p -- "$target"
count=0
while IFS= read -r -d '' file; do
    name=${file#./}
    mkdir -p -- "$target/$(dirname -- "./$name")"
    cp -- "$source/$name" "$target/$name"
    count=$((count + 1))
done < <(cd -- "$source" && find . -type f -name '*.txt' -print0)
echo "$count"
END
chmod 755 /app/backup.sh
