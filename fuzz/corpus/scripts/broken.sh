if x; then \ # c
 for i in {1..3}; do case $x in a) b;; esac
"$(echo ${x[@]//a/"}"} <(y)ÿâ€œ
#SBATCH -N
