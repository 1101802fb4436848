# The CUDA device: its kernels run on the CPU in tests (tests/simt) everywhere; where nvcc is found they are built for the
# card too.
enable_language(CXX)
set(CMAKE_CXX_STANDARD 17)
file(GLOB cuda_kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu)

# The device as tests run it: each .cu compiled by the C++ compiler through tests/simt/simt.h.
set_source_files_properties(${cuda_kernels} PROPERTIES LANGUAGE CXX)
add_library(tv_cuda_simt STATIC ${cuda_kernels} kernels/cuda/device.c kernels/cuda/attention_cudnn.c
            tests/simt/runtime_simt.cpp tests/simt/cudnn_simt.cpp)
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

# Plans of cuDNN for a card that is described to it, with a stand-in for the driver: needs the library and its headers.
find_path(TV_CUDNN_INCLUDE cudnn.h HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES include)
mark_as_advanced(TV_CUDNN_INCLUDE)
if(TV_CUDNN_INCLUDE AND TV_NVCC AND NOT TV_SANITIZE)
  add_library(tv_stand_in_driver SHARED tests/cuda/stand_in_driver.c)
  set_target_properties(tv_stand_in_driver PROPERTIES OUTPUT_NAME cuda SOVERSION 1 LIBRARY_OUTPUT_DIRECTORY
                                                                                   ${CMAKE_BINARY_DIR}/stand-in)
  add_executable(cudnn_plans tests/cuda/test_cudnn_plans.c kernels/cuda/cudnn_graph.c)
  target_include_directories(cudnn_plans SYSTEM PRIVATE ${TV_CUDNN_INCLUDE})
  target_link_libraries(cudnn_plans PRIVATE tv_testing ${CMAKE_DL_LIBS})
  add_dependencies(cudnn_plans tv_stand_in_driver)
  add_test(NAME cudnn_plans COMMAND cudnn_plans)
  set_tests_properties(cudnn_plans PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT ${test_timeout} ENVIRONMENT
                                              "LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/stand-in:$ENV{LD_LIBRARY_PATH}")
endif()
