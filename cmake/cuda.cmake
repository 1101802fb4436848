# The CUDA device: its kernels run on the CPU in tests (tests/simt) everywhere; where nvcc is found they are built for the
# card too.
enable_language(CXX)
set(CMAKE_CXX_STANDARD 17)
file(GLOB cuda_kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu)

# The device as tests run it: each .cu compiled by the C++ compiler through tests/simt/simt.h.
set_source_files_properties(${cuda_kernels} PROPERTIES LANGUAGE CXX)
add_library(tv_cuda_simt STATIC ${cuda_kernels} kernels/cuda/device.c tests/simt/runtime_simt.cpp)
target_compile_options(tv_cuda_simt PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-x c++ -Wno-unknown-pragmas>)
target_link_libraries(tv_cuda_simt PUBLIC tv_kernels tv_base)

file(GLOB simt_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/simt/test_*.c)
foreach(source ${simt_tests})
  get_filename_component(name ${source} NAME_WE)
  string(REPLACE "test_" "simt_" name ${name})
  add_executable(${name} ${source} tests/simt/rig.c)
  target_link_libraries(${name} PRIVATE tv_testing tv_cuda_simt)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT ${test_timeout})
endforeach()
