# Removes up to $made directories above the path, from the deepest one on, if they are empty.
while case $leaf in */*) ;; *) false ;; esac do
  leaf=${leaf#*/} made=$((made - 1))
done
while [ "$made" -gt 0 ]; do
  name=${PWD##*/} made=$((made - 1))
  cd -P .. && rmdir "./$name" 2>/dev/null || exit 0
done
exit 0
