python -m pip install --upgrade torch --extra-index-url https://download.pytorch.org/whl/rocm5.2/
python -m pip install --upgrade numpy accelerate sklearn
