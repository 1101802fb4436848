# CMake's toolchain file for tools/cross_check.sh: Debian's aarch64 cross compiler, libraries from TV_SYSROOT (arm64
# packages, unpacked), test programs run by qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
# Where Debian's cross packages put the C library; it serves the loader under qemu too.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TV_SYSROOT)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${TV_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${TV_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig)
set(CMAKE_FIND_ROOT_PATH ${TV_SYSROOT} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
