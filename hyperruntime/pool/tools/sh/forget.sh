# Removes the temporary file of a write that was ended.
case $leaf in
*/*) cd -P "./${leaf%/*}" || exit 0 ;;
esac
rm -f "./$temporary"
