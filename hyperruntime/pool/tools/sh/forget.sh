# Removes what an ended write left.
case $leaf in
*/*) cd -P "./${leaf%/*}" || exit 0 ;;
esac
rm -f "./$temporary"
