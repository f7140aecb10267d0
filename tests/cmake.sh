#!/bin/sh
# cmake.sh -- a project outside the repository that uses moek by CMake: by add_subdirectory, and installed, by
# find_package.  Skipped where there is no cmake.
root=$(cd "$(dirname "$0")/.." && pwd)
passed=0 failed=0
command -v cmake > /dev/null || { echo "there is no cmake"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
mkdir user
cat > user/CMakeLists.txt <<END
cmake_minimum_required(VERSION 3.14)
project(user C)
if(INSTALLED)
  find_package(moek REQUIRED)
else()
  add_subdirectory("$root" moek)
endif()
add_executable(user user.c moek.c)
target_compile_definitions(user PRIVATE MOEK_QUANT=MOEK_BF16)
target_link_libraries(user PRIVATE moek::moek m)
END
printf '#define MOEK_IMPLEMENTATION\n#include "moek.h"\n' > user/moek.c
printf '#include "moek.h"\nint main(void) { return moek_version() != MOEK_VERSION; }\n' > user/user.c
step() {                                               # NAME COMMAND ...
    name=$1
    shift
    if "$@" > log 2>&1 && ! grep -q Warning log; then passed=$((passed + 1)); echo "ok       $name"
    else failed=$((failed + 1)); echo "FAILED   $name: $*"; sed -n 1,20p log; fi
}
export CC="${CC:-cc}"
step "add_subdirectory: configure" cmake -S user -B direct
step "add_subdirectory: build" cmake --build direct
step "add_subdirectory: run" direct/user
step "install: configure" cmake -S "$root" -B made -DCMAKE_INSTALL_PREFIX="$work/prefix"
step "install" cmake --build made --target install
step "find_package: configure" cmake -S user -B found -DINSTALLED=1 -DCMAKE_PREFIX_PATH="$work/prefix"
step "find_package: build" cmake --build found
step "find_package: run" found/user
said=$(sed -n 's/.*VERSION \([0-9.]*\) LANGUAGES.*/\1/p' "$root/CMakeLists.txt")
is=$(awk '$2 == "MOEK_VERSION" { printf "%d.%d.%d", $3 / 10000, $3 / 100 % 100, $3 % 100; exit }' \
     "$root/include/moek/api.h")
step "CMakeLists.txt says version $said, moek.h $is" test "$said" = "$is"
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
