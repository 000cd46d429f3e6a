#!/bin/bash
count=0
mkdir -p $2
for file in $(find $1 -name "*.txt"); do
    cp $file $2
    count=$((count + 1))
done
echo $count
