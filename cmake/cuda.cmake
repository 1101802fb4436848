# The CUDA device. Its kernels are compiled twice: by the C++ compiler, to run on the CPU in tests (tests/simt) everywhere;
# and by nvcc where it is found, for the card.
if(CMAKE_CROSSCOMPILING)
  return()
endif()
if(CMAKE_C_COMPILER_ID MATCHES Clang AND NOT CMAKE_CXX_COMPILER)
  find_program(TV_CLANGXX clang++)
  mark_as_advanced(TV_CLANGXX)
  if(TV_CLANGXX)
    set(CMAKE_CXX_COMPILER ${TV_CLANGXX})
  endif()
endif()
enable_language(CXX)
set(CMAKE_CXX_STANDARD 17)
file(GLOB cuda_kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu)
# What is C: host code that both devices have, and what only the card's has.
file(GLOB cuda_host CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.c)
list(FILTER cuda_host EXCLUDE REGEX "/(runtime_cuda|cudnn_graph|cudnn_graph_absent|linear_cublaslt|linear_cublaslt_absent)\\.c$")
file(GLOB simt_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/simt/test_*.c)

# The two files that list devices and backends, with the CUDA ones in them. An executable that links these objects takes
# them instead of the ones in tv_engine and tv_kernels.
add_library(tv_cuda_lists OBJECT engine/engine.c kernels/attention.c)
target_compile_definitions(tv_cuda_lists PRIVATE TV_CUDA)
target_link_libraries(tv_cuda_lists PUBLIC tv_engine)

# ---- emulated: each .cu through tests/simt/simt.h ----

set_source_files_properties(${cuda_kernels} PROPERTIES LANGUAGE CXX)
add_library(tv_cuda_simt STATIC ${cuda_kernels} ${cuda_host} kernels/cuda/linear_cublaslt_absent.c
            tests/simt/runtime_simt.cpp tests/simt/cudnn_simt.cpp)
target_compile_options(tv_cuda_simt PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-x c++ -Wno-unknown-pragmas>)
target_link_libraries(tv_cuda_simt PUBLIC tv_kernels tv_base)

# The whole program on the emulated card: what tests run as `tvgpu-simt ... --device cuda`.
add_executable(tvgpu-simt ${cli_sources})
target_compile_definitions(tvgpu-simt PRIVATE TV_VERSION="${PROJECT_VERSION}")
target_link_libraries(tvgpu-simt PRIVATE tv_cuda_lists tv_cuda_simt tv_engine tv_estimator tv_base)

# ---- for the card ----

set(cuda_devices simt)
if(TV_NVCC AND NOT TV_SANITIZE) # sanitizers see the emulated card
  # Code for this compute capability; later cards compile the PTX that goes with it when the program starts.
  set(TV_CUDA_ARCH 90 CACHE STRING "lowest compute capability that the kernels are built for, without the point")
  get_filename_component(toolkit ${TV_NVCC} REALPATH)
  get_filename_component(toolkit ${toolkit} DIRECTORY)
  set(CUDAToolkit_ROOT ${toolkit}/..)
  find_package(CUDAToolkit REQUIRED QUIET)
  set(nvcc_flags -arch=sm_${TV_CUDA_ARCH} -std=c++17 -O3 -fmad=false -Werror all-warnings
      -Xptxas -v,-Werror,-warn-spills,-warn-lmem-usage,-warn-double-usage -Xcompiler -Wall,-Wextra -I${CMAKE_SOURCE_DIR})
  set(cuda_objects)
  set(ptx_files)
  set(ptxas_logs)
  foreach(source ${cuda_kernels})
    get_filename_component(name ${source} NAME_WE)
    set(out ${CMAKE_BINARY_DIR}/cuda/${name})
    add_custom_command(
      OUTPUT ${out}.o ${out}.ptx ${out}.ptxas
      COMMAND ${CMAKE_SOURCE_DIR}/cmake/nvcc.sh ${out} ${source} ${TV_NVCC} ${nvcc_flags}
      DEPENDS ${source} ${CMAKE_SOURCE_DIR}/cmake/nvcc.sh
      DEPFILE ${out}.d
      COMMENT "Building CUDA object ${name}.o"
      VERBATIM)
    list(APPEND cuda_objects ${out}.o)
    list(APPEND ptx_files ${out}.ptx)
    list(APPEND ptxas_logs ${out}.ptxas)
  endforeach()

  set_source_files_properties(${cuda_objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set(cuda_card kernels/cuda/runtime_cuda.c)
  set(cuda_includes)
  find_path(TV_CUDNN_INCLUDE cudnn.h HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS ${CUDAToolkit_INCLUDE_DIRS})
  mark_as_advanced(TV_CUDNN_INCLUDE)
  if(TV_CUDNN_INCLUDE)
    list(APPEND cuda_card kernels/cuda/cudnn_graph.c)
    list(APPEND cuda_includes ${TV_CUDNN_INCLUDE})
  else()
    list(APPEND cuda_card kernels/cuda/cudnn_graph_absent.c)
  endif()
  find_path(TV_CUBLASLT_INCLUDE cublasLt.h HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS ${CUDAToolkit_INCLUDE_DIRS})
  mark_as_advanced(TV_CUBLASLT_INCLUDE)
  if(TV_CUBLASLT_INCLUDE)
    list(APPEND cuda_card kernels/cuda/linear_cublaslt.c)
    list(APPEND cuda_includes ${TV_CUBLASLT_INCLUDE})
  else()
    list(APPEND cuda_card kernels/cuda/linear_cublaslt_absent.c)
  endif()
  add_library(tv_cuda STATIC ${cuda_objects} ${cuda_host} ${cuda_card})
  target_compile_definitions(tv_cuda PRIVATE TV_CUDA_ARCH=${TV_CUDA_ARCH}
                             TV_CUDA_LIBRARIES="${CUDAToolkit_LIBRARY_DIR}")
  target_include_directories(tv_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS} ${cuda_includes})
  # Linked statically where possible, the runtime needs nothing on the machine: the program starts without a driver.
  if(TARGET CUDA::cudart_static)
    target_link_libraries(tv_cuda PUBLIC tv_kernels tv_base CUDA::cudart_static stdc++)
  else()
    target_link_libraries(tv_cuda PUBLIC tv_kernels tv_base CUDA::cudart stdc++)
  endif()
  target_link_libraries(tvgpu PRIVATE tv_cuda_lists tv_cuda tv_engine)
  list(APPEND cuda_devices cuda)

  # What nvcc made of the kernels: registers and shared memory of every kernel, and instructions, against committed tables.
  add_test(NAME ptx_registers COMMAND ${CMAKE_SOURCE_DIR}/tests/simt/check_registers.sh ${TV_NVCC}
           ${CMAKE_SOURCE_DIR}/tests/simt/registers.txt ${ptxas_logs})
  add_test(NAME ptx_instructions COMMAND ${CMAKE_SOURCE_DIR}/tests/simt/check_ptx.sh
           ${CMAKE_SOURCE_DIR}/tests/simt/instructions.txt ${ptx_files})
endif()

# ---- tests: each file once for the emulated card, and once for a real one, where it skips itself without one ----

file(GLOB simt_only CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/simt/simt_*.c) # about the emulated card itself
foreach(device ${cuda_devices})
  if(device STREQUAL simt)
    set(library tv_cuda_simt)
    set(sources ${simt_tests} ${simt_only})
  else()
    set(library tv_cuda)
    set(sources ${simt_tests})
  endif()
  add_library(tv_rig_${device} OBJECT tests/simt/rig.c)
  target_link_libraries(tv_rig_${device} PUBLIC tv_cuda_lists ${library} tv_testing)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    string(REPLACE "test_" "${device}_" name ${name})
    add_executable(${name} ${source})
    target_link_libraries(${name} PRIVATE tv_rig_${device} tv_cuda_lists)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT ${test_timeout} ENVIRONMENT OMP_WAIT_POLICY=passive)
  endforeach()
endforeach()

add_dependencies(simt_cli tvgpu tvgpu-simt) # it runs them

# The whole layer loop on the golden models: the tests of tests/test_forward.c that mean something on any device.
foreach(device ${cuda_devices})
  add_executable(${device}_forward tests/test_forward.c)
  target_compile_definitions(${device}_forward PRIVATE TV_TEST_OPS=tv_ops_cuda)
  target_link_libraries(${device}_forward PRIVATE tv_rig_${device} tv_cuda_lists)
  foreach(name golden)
    add_test(NAME ${device}_forward_${name} COMMAND ${device}_forward ${name})
    set_tests_properties(${device}_forward_${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 1800
                                                              ENVIRONMENT OMP_WAIT_POLICY=passive)
  endforeach()
endforeach()

# cuBLASLt's own descriptors, with a stand-in for the calls that need a card.
if(TV_CUBLASLT_INCLUDE AND TV_NVCC AND NOT TV_SANITIZE)
  add_executable(cuda_linear_cublaslt tests/cuda/test_linear_cublaslt.c kernels/cuda/linear_cublaslt.c)
  target_include_directories(cuda_linear_cublaslt SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS} ${TV_CUBLASLT_INCLUDE})
  target_compile_definitions(cuda_linear_cublaslt PRIVATE TV_CUDA_LIBRARIES="${CUDAToolkit_LIBRARY_DIR}")
  target_link_libraries(cuda_linear_cublaslt PRIVATE tv_rig_simt tv_cuda_lists ${CMAKE_DL_LIBS})
  add_test(NAME cuda_linear_cublaslt COMMAND cuda_linear_cublaslt)
  set_tests_properties(cuda_linear_cublaslt PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT ${test_timeout})
endif()

# Plans of cuDNN for a card that is described to it, with a stand-in for the driver: needs the library and its headers.
if(TV_CUDNN_INCLUDE AND TV_NVCC AND NOT TV_SANITIZE)
  add_library(tv_stand_in_driver SHARED tests/cuda/stand_in_driver.c)
  set_target_properties(tv_stand_in_driver PROPERTIES OUTPUT_NAME cuda SOVERSION 1 LIBRARY_OUTPUT_DIRECTORY
                                                                                   ${CMAKE_BINARY_DIR}/stand-in)
  add_executable(cuda_cudnn_plans tests/cuda/test_cudnn_plans.c kernels/cuda/cudnn_graph.c)
  target_include_directories(cuda_cudnn_plans SYSTEM PRIVATE ${TV_CUDNN_INCLUDE})
  target_link_libraries(cuda_cudnn_plans PRIVATE tv_testing ${CMAKE_DL_LIBS})
  add_dependencies(cuda_cudnn_plans tv_stand_in_driver)
  add_test(NAME cuda_cudnn_plans COMMAND cuda_cudnn_plans)
  set_tests_properties(cuda_cudnn_plans PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT ${test_timeout} ENVIRONMENT
                                              "LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/stand-in:$ENV{LD_LIBRARY_PATH}")
endif()
