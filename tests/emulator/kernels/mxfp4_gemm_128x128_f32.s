	.amdgcn_target "amdgcn-amd-amdhsa-unknown-gfx1250"
	.amdhsa_code_object_version 6
	.text
	.globl	mxfp4_gemm_0
	.p2align	8
	.type	mxfp4_gemm_0,@function
mxfp4_gemm_0:
	s_setreg_imm32_b32 hwreg(HW_REG_WAVE_MODE, 25, 1), 1
	s_mov_b64 s[64:65], 0
	v_nop
	global_prefetch_b8 v0, s[64:65] scope:SCOPE_SE
	s_setreg_imm32_b32 hwreg(HW_REG_WAVE_SCHED_MODE, 0, 2), 2
	s_bfe_u32 s2, ttmp6, 0x4000c
	s_and_b32 s3, ttmp6, 15
	s_add_co_i32 s2, s2, 1
	s_getreg_b32 s4, hwreg(HW_REG_IB_STS2, 6, 4)
	s_mul_i32 s2, ttmp9, s2
	s_clause 0x1
	s_load_b128 s[36:39], s[0:1], 0x80 nv
	s_load_b64 s[34:35], s[0:1], 0x68 nv
	s_add_co_i32 s3, s3, s2
	s_cmp_eq_u32 s4, 0
	s_load_b256 s[24:31], s[0:1], 0x48 nv
	s_cselect_b32 s3, ttmp9, s3
	s_bfe_u32 s2, ttmp6, 0x40010
	s_and_b32 s5, ttmp7, 0xffff
	s_add_co_i32 s2, s2, 1
	s_bfe_u32 s6, ttmp6, 0x40004
	s_mul_i32 s2, s5, s2
	v_and_b32_e32 v197, 15, v0
	s_add_co_i32 s6, s6, s2
	s_cmp_eq_u32 s4, 0
	v_and_b32_e32 v2, 16, v0
	s_cselect_b32 s14, s5, s6
	s_bfe_u32 s2, ttmp6, 0x40014
	s_lshr_b32 s12, ttmp7, 16
	s_add_co_i32 s2, s2, 1
	s_bfe_u32 s5, ttmp6, 0x40008
	s_mul_i32 s2, s12, s2
	v_mad_u32_u24 v2, 0x50, v197, v2
	s_add_co_i32 s2, s5, s2
	s_cmp_eq_u32 s4, 0
	s_load_b256 s[4:11], s[0:1], 0x0 nv
	s_cselect_b32 s48, s12, s2
	s_wait_kmcnt 0x0
	s_lshl_b32 s12, s39, 2
	s_mul_i32 s2, s39, s48
	s_bfe_u32 s33, ttmp8, 0x50019
	s_lshl_b32 s13, s2, 2
	s_lshl_b32 s40, s3, 7
	s_sub_co_i32 s13, s38, s13
	s_ashr_i32 s3, s2, 31
	s_min_i32 s52, s13, s12
	s_lshl_b64 s[12:13], s[2:3], 6
	s_add_co_i32 s15, s52, 3
	s_lshl_b64 s[2:3], s[2:3], 2
	s_ashr_i32 s51, s15, 2
	s_and_b32 s15, s33, 30
	s_lshl_b32 s38, s14, 7
	s_cmp_lg_u32 s33, s15
	s_mov_b32 s23, 0
	s_cselect_b32 s14, -1, 0
	s_cmp_lt_i32 s33, 0
	s_add_nc_u64 s[44:45], s[12:13], s[6:7]
	s_cselect_b32 s15, -1, 0
	s_lshr_b32 s16, s33, 1
	s_and_b32 s14, s15, s14
	s_add_nc_u64 s[46:47], s[12:13], s[10:11]
	s_cmp_lg_u32 s14, 0
	s_load_b64 s[14:15], s[0:1], 0x20 nv
	s_sub_co_ci_u32 s50, s16, 0
	s_and_b32 s17, s33, 1
	s_mov_b32 s39, s23
	s_mul_i32 s18, s17, 0x1400
	s_delay_alu instid0(SALU_CYCLE_1)
	v_dual_add_nc_u32 v4, s18, v2 :: v_dual_bitop2_b32 v1, 31, v0 bitop3:0x40
	s_lshl_b32 s49, s17, 6
	s_mul_i32 s10, s17, 0x900
	s_wait_xcnt 0x0
	s_or_b32 s0, s49, s38
	v_mul_u32_u24_e32 v1, 36, v1
	s_ashr_i32 s1, s0, 31
	s_add_co_i32 s19, s18, 0x2800
	s_mul_u64 s[6:7], s[28:29], s[0:1]
	s_mov_b32 s12, 0x11400
	v_add3_u32 v200, s10, v1, 0x11400
	s_add_nc_u64 s[10:11], s[46:47], s[6:7]
	s_sub_co_i32 s7, s37, s0
	s_or_b32 s0, s49, s40
	s_lshl_b32 s6, s52, 4
	s_ashr_i32 s1, s0, 31
	s_sub_co_i32 s20, s36, s0
	s_cmp_gt_i32 s33, 1
	s_mul_u64 s[0:1], s[24:25], s[0:1]
	s_cselect_b32 s53, -1, 0
	s_add_nc_u64 s[0:1], s[44:45], s[0:1]
	s_and_b32 s13, s53, exec_lo
	s_cselect_b32 s43, s11, s1
	s_cselect_b32 s42, s10, s0
	s_cselect_b32 s54, s29, s25
	s_cselect_b32 s13, s28, s24
	s_cselect_b32 s0, s7, s20
	s_cselect_b32 s1, s19, s18
	s_add_co_i32 s18, s51, 7
	s_max_i32 s7, s0, 0
	s_sub_co_i32 s0, s37, s38
	s_ashr_i32 s55, s18, 3
	s_sub_co_i32 s18, s36, s40
	s_ashr_i32 s41, s40, 31
	s_mul_u64 s[10:11], s[30:31], s[38:39]
	s_cmp_eq_u32 s17, 0
	s_wait_kmcnt 0x0
	s_add_nc_u64 s[10:11], s[10:11], s[14:15]
	s_mul_u64 s[14:15], s[26:27], s[40:41]
	s_cselect_b32 s60, -1, 0
	s_add_nc_u64 s[8:9], s[14:15], s[8:9]
	s_and_b32 s14, s60, exec_lo
	s_cselect_b32 s0, s18, s0
	s_cselect_b32 s9, s9, s11
	s_cselect_b32 s8, s8, s10
	s_cselect_b32 s59, s27, s31
	s_cselect_b32 s21, s26, s30
	s_cselect_b32 s58, 0xf000, s12
	s_max_i32 s27, s0, 0
	s_mul_i32 s0, s16, 0x1200
	s_lshl_b32 s22, s16, 5
	s_add_nc_u64 s[30:31], s[8:9], s[2:3]
	s_add_co_i32 s9, s58, s0
	s_sub_co_i32 s26, s52, s22
	s_cmp_lt_i32 s16, s55
	s_add_nc_u64 s[10:11], s[30:31], s[22:23]
	s_cselect_b32 s8, 1, 0
	s_lshr_b32 s0, s27, 16
	s_lshr_b64 s[18:19], s[26:27], 16
	s_lshl_b32 s17, s26, 16
	s_or_b32 s19, s0, 0x200000
	s_and_b32 s22, s59, 0xffff
	s_bitset1_b32 s11, 31
	s_movk_i32 s20, 0x80
	s_mov_b32 s16, 0x900000
	s_cmp_gt_i32 s51, 0
	tensor_load_to_lds s[8:11], s[16:23]
	s_cselect_b32 s0, 1, 0
	s_lshr_b32 s8, s7, 16
	s_lshr_b64 s[10:11], s[6:7], 16
	s_or_b32 s3, s43, 0x80000000
	s_mov_b32 s2, s42
	s_lshl_b32 s9, s52, 20
	s_or_b32 s11, s8, 0x400000
	s_and_b32 s14, s54, 0xffff
	s_mov_b32 s12, 64
	s_mov_b32 s8, 0x6d00000
	s_mov_b32 s15, s23
	s_lshl_b32 s26, s7, 16
	s_wait_tensorcnt 0xa
	tensor_load_to_lds s[0:3], s[8:15]
	s_add_co_i32 s17, s1, 0x5000
	s_sub_co_i32 s2, s6, 64
	v_mad_u32 v3, 0x900, s50, v1
	s_cmp_gt_i32 s51, 1
	s_mov_b32 s3, s7
	s_add_nc_u64 s[18:19], s[42:43], 64
	s_cselect_b32 s16, 1, 0
	s_lshr_b64 s[66:67], s[2:3], 16
	s_bitset1_b32 s19, 31
	s_lshl_b32 s65, s2, 16
	s_mov_b32 s64, s8
	s_mov_b32 s67, s11
	s_mov_b32 s68, s12
	s_mov_b32 s69, s13
	s_mov_b32 s70, s14
	s_mov_b32 s71, s23
	v_mad_u32 v199, 0x1400, s50, v2
	s_wait_tensorcnt 0xa
	tensor_load_to_lds s[16:19], s[64:71]
	s_add_co_i32 s17, s1, 0xa000
	s_add_co_i32 s2, s6, 0xffffff80
	s_cmp_gt_i32 s51, 2
	s_add_nc_u64 s[18:19], s[42:43], 0x80
	v_add_nc_u32_e32 v198, 0xf000, v3
	v_add_nc_u32_e32 v201, 0x2800, v4
	s_cselect_b32 s16, 1, 0
	s_lshr_b64 s[66:67], s[2:3], 16
	s_bitset1_b32 s19, 31
	s_lshl_b32 s65, s2, 16
	s_mov_b32 s67, s11
	s_mov_b32 s56, 0x400000
	s_wait_tensorcnt 0xa
	tensor_load_to_lds s[16:19], s[64:71]
	s_wait_tensorcnt 0x2
	s_barrier_signal -1
	s_barrier_wait -1
	s_wait_alu depctr_va_vdst(6)
	ds_load_b128 v[66:69], v4 offset:10240
	ds_load_b128 v[70:73], v4 offset:10272
	ds_load_b128 v[74:77], v4 offset:11520
	ds_load_b128 v[78:81], v4 offset:11552
	ds_load_b128 v[82:85], v4 offset:12800
	ds_load_b128 v[86:89], v4 offset:12832
	ds_load_b128 v[154:157], v4 offset:14080
	ds_load_b128 v[158:161], v4 offset:14112
	s_wait_alu depctr_va_vdst(3)
	ds_load_b32 v1, v200
	ds_load_b32 v196, v200 offset:1152
	ds_load_b32 v195, v3 offset:61440
	ds_load_b32 v194, v3 offset:62592
	s_wait_alu depctr_va_vdst(2)
	ds_load_b128 v[186:189], v199
	ds_load_b128 v[190:193], v199 offset:32
	ds_load_b128 v[170:173], v199 offset:1280
	ds_load_b128 v[174:177], v199 offset:1312
	ds_load_b128 v[162:165], v199 offset:2560
	ds_load_b128 v[166:169], v199 offset:2592
	ds_load_b128 v[178:181], v199 offset:3840
	ds_load_b128 v[182:185], v199 offset:3872
	s_wait_tensorcnt 0x1
	s_barrier_signal -1
	s_add_co_i32 s0, s51, -1
	s_delay_alu instid0(SALU_CYCLE_1) | instskip(NEXT) | instid1(SALU_CYCLE_1)
	s_ashr_i32 s57, s0, 1
	s_cmp_lt_i32 s57, 1
	s_cbranch_scc1 .LBB0_4
	v_mov_b32_e32 v98, 0
	s_mul_u64 s[2:3], s[28:29], s[38:39]
	s_mul_u64 s[16:17], s[24:25], s[40:41]
	s_add_nc_u64 s[2:3], s[46:47], s[2:3]
	s_add_nc_u64 s[16:17], s[44:45], s[16:17]
	s_and_b32 s10, s60, exec_lo
	v_dual_mov_b32 v99, v98 :: v_dual_mov_b32 v100, v98
	v_dual_mov_b32 v101, v98 :: v_dual_mov_b32 v102, v98
	v_dual_mov_b32 v103, v98 :: v_dual_mov_b32 v104, v98
	v_dual_mov_b32 v105, v98 :: v_dual_mov_b32 v146, v98
	v_dual_mov_b32 v147, v98 :: v_dual_mov_b32 v148, v98
	v_dual_mov_b32 v149, v98 :: v_dual_mov_b32 v150, v98
	v_dual_mov_b32 v151, v98 :: v_dual_mov_b32 v152, v98
	v_dual_mov_b32 v153, v98 :: v_dual_mov_b32 v138, v98
	v_dual_mov_b32 v139, v98 :: v_dual_mov_b32 v140, v98
	v_dual_mov_b32 v141, v98 :: v_dual_mov_b32 v142, v98
	v_dual_mov_b32 v143, v98 :: v_dual_mov_b32 v144, v98
	v_dual_mov_b32 v145, v98 :: v_dual_mov_b32 v130, v98
	v_dual_mov_b32 v131, v98 :: v_dual_mov_b32 v132, v98
	v_dual_mov_b32 v133, v98 :: v_dual_mov_b32 v134, v98
	v_dual_mov_b32 v135, v98 :: v_dual_mov_b32 v136, v98
	v_dual_mov_b32 v137, v98 :: v_dual_mov_b32 v122, v98
	v_dual_mov_b32 v123, v98 :: v_dual_mov_b32 v124, v98
	v_dual_mov_b32 v125, v98 :: v_dual_mov_b32 v126, v98
	v_dual_mov_b32 v127, v98 :: v_dual_mov_b32 v128, v98
	v_dual_mov_b32 v129, v98 :: v_dual_mov_b32 v114, v98
	v_dual_mov_b32 v115, v98 :: v_dual_mov_b32 v116, v98
	v_dual_mov_b32 v117, v98 :: v_dual_mov_b32 v118, v98
	v_dual_mov_b32 v119, v98 :: v_dual_mov_b32 v120, v98
	v_dual_mov_b32 v121, v98 :: v_dual_mov_b32 v106, v98
	v_dual_mov_b32 v107, v98 :: v_dual_mov_b32 v108, v98
	v_dual_mov_b32 v109, v98 :: v_dual_mov_b32 v110, v98
	v_dual_mov_b32 v111, v98 :: v_dual_mov_b32 v112, v98
	v_dual_mov_b32 v113, v98 :: v_dual_mov_b32 v90, v98
	v_dual_mov_b32 v91, v98 :: v_dual_mov_b32 v92, v98
	v_dual_mov_b32 v93, v98 :: v_dual_mov_b32 v94, v98
	v_dual_mov_b32 v95, v98 :: v_dual_mov_b32 v96, v98
	v_dual_mov_b32 v97, v98 :: v_dual_mov_b32 v58, v98
	v_dual_mov_b32 v59, v98 :: v_dual_mov_b32 v60, v98
	v_dual_mov_b32 v61, v98 :: v_dual_mov_b32 v62, v98
	v_dual_mov_b32 v63, v98 :: v_dual_mov_b32 v64, v98
	v_dual_mov_b32 v65, v98 :: v_dual_mov_b32 v50, v98
	v_dual_mov_b32 v51, v98 :: v_dual_mov_b32 v52, v98
	v_dual_mov_b32 v53, v98 :: v_dual_mov_b32 v54, v98
	v_dual_mov_b32 v55, v98 :: v_dual_mov_b32 v56, v98
	v_dual_mov_b32 v57, v98 :: v_dual_mov_b32 v42, v98
	v_dual_mov_b32 v43, v98 :: v_dual_mov_b32 v44, v98
	v_dual_mov_b32 v45, v98 :: v_dual_mov_b32 v46, v98
	v_dual_mov_b32 v47, v98 :: v_dual_mov_b32 v48, v98
	v_dual_mov_b32 v49, v98 :: v_dual_mov_b32 v34, v98
	v_dual_mov_b32 v35, v98 :: v_dual_mov_b32 v36, v98
	v_dual_mov_b32 v37, v98 :: v_dual_mov_b32 v38, v98
	v_dual_mov_b32 v39, v98 :: v_dual_mov_b32 v40, v98
	v_dual_mov_b32 v41, v98 :: v_dual_mov_b32 v26, v98
	v_dual_mov_b32 v27, v98 :: v_dual_mov_b32 v28, v98
	v_dual_mov_b32 v29, v98 :: v_dual_mov_b32 v30, v98
	v_dual_mov_b32 v31, v98 :: v_dual_mov_b32 v32, v98
	v_dual_mov_b32 v33, v98 :: v_dual_mov_b32 v18, v98
	v_dual_mov_b32 v19, v98 :: v_dual_mov_b32 v20, v98
	v_dual_mov_b32 v21, v98 :: v_dual_mov_b32 v22, v98
	v_dual_mov_b32 v23, v98 :: v_dual_mov_b32 v24, v98
	v_dual_mov_b32 v25, v98 :: v_dual_mov_b32 v10, v98
	v_dual_mov_b32 v11, v98 :: v_dual_mov_b32 v12, v98
	v_dual_mov_b32 v13, v98 :: v_dual_mov_b32 v14, v98
	v_dual_mov_b32 v15, v98 :: v_dual_mov_b32 v16, v98
	v_dual_mov_b32 v17, v98 :: v_dual_mov_b32 v2, v98
	s_wait_alu depctr_vm_vsrc(6)
	v_dual_mov_b32 v3, v98 :: v_dual_mov_b32 v4, v98
	v_dual_mov_b32 v5, v98 :: v_dual_mov_b32 v6, v98
	v_dual_mov_b32 v7, v98 :: v_dual_mov_b32 v8, v98
	v_mov_b32_e32 v9, v98
	s_cselect_b32 s2, s16, s2
	s_cselect_b32 s3, s17, s3
	s_cselect_b32 s10, s24, s28
	s_cselect_b32 s15, s25, s29
	s_cselect_b32 s16, 0, 0x2800
	s_and_b32 s17, s53, exec_lo
	s_cselect_b32 s24, s31, s3
	s_cselect_b32 s25, s30, s2
	s_cselect_b32 s28, s59, s15
	s_cselect_b32 s29, s21, s10
	s_cselect_b32 s30, s58, s16
	s_mov_b32 s15, s23
	s_add_nc_u64 s[2:3], s[42:43], 0xc0
	s_add_co_i32 s31, s6, 0xffffff40
	s_add_co_i32 s9, s9, 0xff400000
	s_mov_b32 s39, 8
	s_mov_b32 s16, 0
	s_mov_b32 s10, 0
	s_mov_b32 s41, 0
	s_wait_dscnt 0x0
.LBB0_2:
	s_add_co_i32 s17, s10, 0x5000
	s_cmp_lg_u32 s10, 0xa000
	s_cselect_b32 s17, s17, 0
	s_barrier_wait -1
	v_nop
	v_dual_add_nc_u32 v230, s17, v201 :: v_dual_add_nc_u32 v246, s17, v199
	s_lshr_b32 s19, s41, 2
	s_bitcmp1_b32 s41, 2
	s_wait_dscnt 0x6
	v_wmma_scale_f32_16x16x128_f8f6f4 v[98:105], v[66:73], v[186:193], v[98:105], v1, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4
	s_wait_alu depctr_va_vdst(0)
	ds_load_b128 v[202:205], v230
	ds_load_b128 v[206:209], v230 offset:32
	ds_load_b128 v[210:213], v230 offset:1280
	ds_load_b128 v[214:217], v230 offset:1312
	ds_load_b128 v[218:221], v230 offset:2560
	ds_load_b128 v[222:225], v230 offset:2592
	s_cselect_b32 s18, 0x1200, 0
	s_and_b32 s20, s16, 6
	v_wmma_scale_f32_16x16x128_f8f6f4 v[146:153], v[74:81], v[186:193], v[146:153], v1, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1
	s_lshl_b32 s21, s20, 2
	s_wait_dscnt 0x6
	s_or_b32 s21, s21, s18
	v_wmma_scale_f32_16x16x128_f8f6f4 v[138:145], v[82:89], v[186:193], v[138:145], v196, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4
	s_or_b32 s21, s21, 4
	s_delay_alu instid0(SALU_CYCLE_1)
	v_dual_add_nc_u32 v234, s21, v200 :: v_dual_add_nc_u32 v235, s21, v198
	s_barrier_signal -1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[130:137], v[154:161], v[186:193], v[130:137], v196, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1
	ds_load_b128 v[226:229], v230 offset:3840
	s_wait_alu depctr_vm_vsrc(0)
	ds_load_b128 v[230:233], v230 offset:3872
	v_wmma_scale_f32_16x16x128_f8f6f4 v[90:97], v[154:161], v[170:177], v[90:97], v196, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1 matrix_b_scale:MATRIX_SCALE_ROW1
	s_barrier_wait -1
	s_add_co_i32 s21, s16, 3
	s_add_co_i32 s45, s10, s1
	s_cmp_lt_i32 s21, s51
	s_mov_b32 s46, s2
	s_cselect_b32 s44, 1, 0
	s_lshr_b32 s10, s31, 16
	s_or_b32 s47, s3, 0x80000000
	s_or_b32 s10, s10, s26
	v_wmma_scale_f32_16x16x128_f8f6f4 v[106:113], v[82:89], v[170:177], v[106:113], v196, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_b_scale:MATRIX_SCALE_ROW1
	tensor_load_to_lds s[44:47], s[8:15]
	s_wait_alu depctr_va_vdst(0)
	ds_load_b32 v250, v234
	ds_load_b32 v251, v234 offset:1152
	v_wmma_scale_f32_16x16x128_f8f6f4 v[114:121], v[74:81], v[170:177], v[114:121], v1, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1 matrix_b_scale:MATRIX_SCALE_ROW1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[122:129], v[66:73], v[170:177], v[122:129], v1, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_b_scale:MATRIX_SCALE_ROW1
	ds_load_b32 v186, v235
	ds_load_b32 v252, v235 offset:1152
	s_wait_alu depctr_va_vdst(0)
	ds_load_b128 v[170:173], v246
	ds_load_b128 v[174:177], v246 offset:32
	v_wmma_scale_f32_16x16x128_f8f6f4 v[58:65], v[66:73], v[162:169], v[58:65], v1, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4
	v_wmma_scale_f32_16x16x128_f8f6f4 v[50:57], v[74:81], v[162:169], v[50:57], v1, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[42:49], v[82:89], v[162:169], v[42:49], v196, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4
	v_wmma_scale_f32_16x16x128_f8f6f4 v[34:41], v[154:161], v[162:169], v[34:41], v196, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1
	s_wait_alu depctr_va_vdst(0)
	ds_load_b128 v[162:165], v246 offset:1280
	ds_load_b128 v[166:169], v246 offset:1312
	s_wait_alu depctr_vm_vsrc(4)
	ds_load_b128 v[234:237], v246 offset:2560
	ds_load_b128 v[238:241], v246 offset:2592
	v_wmma_scale_f32_16x16x128_f8f6f4 v[2:9], v[154:161], v[178:185], v[2:9], v196, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1 matrix_b_scale:MATRIX_SCALE_ROW1
	s_wait_tensorcnt 0x1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[10:17], v[82:89], v[178:185], v[10:17], v196, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_b_scale:MATRIX_SCALE_ROW1
	s_barrier_signal -1
	ds_load_b128 v[242:245], v246 offset:3840
	s_wait_alu depctr_vm_vsrc(0)
	ds_load_b128 v[246:249], v246 offset:3872
	v_wmma_scale_f32_16x16x128_f8f6f4 v[18:25], v[74:81], v[178:185], v[18:25], v1, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1 matrix_b_scale:MATRIX_SCALE_ROW1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[26:33], v[66:73], v[178:185], v[26:33], v1, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_b_scale:MATRIX_SCALE_ROW1
	s_add_co_i32 s10, s17, 0x5000
	s_cmp_lg_u32 s17, 0xa000
	s_cselect_b32 s10, s10, 0
	s_barrier_wait -1
	v_nop
	v_dual_add_nc_u32 v1, s10, v201 :: v_dual_add_nc_u32 v182, s10, v199
	s_add_co_i32 s44, s16, 2
	s_and_b32 s22, s39, 24
	s_bfe_i32 s21, s44, 0x10003
	s_wait_alu depctr_va_vdst(0)
	ds_load_b128 v[66:69], v1
	ds_load_b128 v[70:73], v1 offset:32
	ds_load_b128 v[74:77], v1 offset:1280
	ds_load_b128 v[78:81], v1 offset:1312
	ds_load_b128 v[82:85], v1 offset:2560
	ds_load_b128 v[86:89], v1 offset:2592
	s_and_b32 s21, s21, 0x1200
	s_wait_dscnt 0xc
	v_wmma_scale_f32_16x16x128_f8f6f4 v[98:105], v[202:209], v[170:177], v[98:105], v250, v186 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4
	s_or_b32 s21, s21, s22
	s_wait_dscnt 0x6
	v_add_nc_u32_e32 v178, s21, v200
	v_wmma_scale_f32_16x16x128_f8f6f4 v[146:153], v[210:217], v[170:177], v[146:153], v250, v186 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1
	v_add_nc_u32_e32 v179, s21, v198
	v_wmma_scale_f32_16x16x128_f8f6f4 v[138:145], v[218:225], v[170:177], v[138:145], v251, v186 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4
	s_barrier_signal -1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[130:137], v[226:233], v[170:177], v[130:137], v251, v186 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1
	ds_load_b128 v[154:157], v1 offset:3840
	ds_load_b128 v[158:161], v1 offset:3872
	v_wmma_scale_f32_16x16x128_f8f6f4 v[90:97], v[226:233], v[162:169], v[90:97], v251, v186 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1 matrix_b_scale:MATRIX_SCALE_ROW1
	s_barrier_wait -1
	s_add_co_i32 s22, s19, 2
	s_add_co_i32 s45, s16, 4
	s_cmp_eq_u32 s20, 6
	v_wmma_scale_f32_16x16x128_f8f6f4 v[106:113], v[218:225], v[162:169], v[106:113], v251, v186 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_b_scale:MATRIX_SCALE_ROW1
	s_cselect_b32 s16, -1, 0
	s_delay_alu instid0(SALU_CYCLE_1)
	s_and_b32 s19, s16, exec_lo
	s_cselect_b32 s47, s24, s43
	s_cselect_b32 s46, s25, s42
	s_cselect_b32 s21, s29, s13
	s_cselect_b32 s64, s28, s54
	s_cselect_b32 s19, s27, s7
	s_cselect_b32 s20, 0x80, 64
	s_cselect_b32 s60, s30, s1
	s_and_b32 s16, s53, s16
	v_wmma_scale_f32_16x16x128_f8f6f4 v[114:121], v[210:217], v[162:169], v[114:121], v250, v186 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1 matrix_b_scale:MATRIX_SCALE_ROW1
	s_and_b32 s16, s16, exec_lo
	s_cselect_b32 s22, s22, s45
	s_cselect_b32 s45, 5, 6
	s_cselect_b32 s62, s52, s6
	s_cselect_b32 s65, 0x200000, s56
	s_cselect_b32 s16, 0x900000, s8
	s_cselect_b32 s63, s55, s51
	s_cselect_b32 s17, s18, s17
	s_lshl_b32 s18, s22, s45
	s_lshl_b64 s[58:59], s[22:23], s45
	s_add_co_i32 s61, s17, s60
	s_sub_co_i32 s18, s62, s18
	s_cmp_lt_i32 s22, s63
	s_add_nc_u64 s[62:63], s[58:59], s[46:47]
	s_cselect_b32 s60, 1, 0
	s_lshr_b32 s22, s19, 16
	s_lshl_b32 s17, s18, 16
	s_lshr_b64 s[18:19], s[18:19], 16
	s_bitset1_b32 s63, 31
	s_or_b32 s19, s22, s65
	s_and_b32 s22, s64, 0xffff
	v_wmma_scale_f32_16x16x128_f8f6f4 v[122:129], v[202:209], v[162:169], v[122:129], v250, v186 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_b_scale:MATRIX_SCALE_ROW1
	tensor_load_to_lds s[60:63], s[16:23]
	s_wait_alu depctr_va_vdst(0) depctr_vm_vsrc(0)
	ds_load_b32 v1, v178
	ds_load_b32 v196, v178 offset:1152
	ds_load_b32 v195, v179
	ds_load_b32 v194, v179 offset:1152
	ds_load_b128 v[186:189], v182
	ds_load_b128 v[190:193], v182 offset:32
	v_wmma_scale_f32_16x16x128_f8f6f4 v[58:65], v[202:209], v[234:241], v[58:65], v250, v252 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4
	v_wmma_scale_f32_16x16x128_f8f6f4 v[50:57], v[210:217], v[234:241], v[50:57], v250, v252 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[42:49], v[218:225], v[234:241], v[42:49], v251, v252 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4
	v_wmma_scale_f32_16x16x128_f8f6f4 v[34:41], v[226:233], v[234:241], v[34:41], v251, v252 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1
	ds_load_b128 v[170:173], v182 offset:1280
	ds_load_b128 v[174:177], v182 offset:1312
	ds_load_b128 v[162:165], v182 offset:2560
	ds_load_b128 v[166:169], v182 offset:2592
	v_wmma_scale_f32_16x16x128_f8f6f4 v[2:9], v[226:233], v[242:249], v[2:9], v251, v252 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1 matrix_b_scale:MATRIX_SCALE_ROW1
	s_wait_tensorcnt 0x1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[10:17], v[218:225], v[242:249], v[10:17], v251, v252 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_b_scale:MATRIX_SCALE_ROW1
	s_barrier_signal -1
	s_wait_alu depctr_vm_vsrc(6)
	ds_load_b128 v[178:181], v182 offset:3840
	s_wait_alu depctr_vm_vsrc(0)
	ds_load_b128 v[182:185], v182 offset:3872
	v_wmma_scale_f32_16x16x128_f8f6f4 v[18:25], v[210:217], v[242:249], v[18:25], v250, v252 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1 matrix_b_scale:MATRIX_SCALE_ROW1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[26:33], v[202:209], v[242:249], v[26:33], v250, v252 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_b_scale:MATRIX_SCALE_ROW1
	s_add_co_i32 s41, s41, 1
	s_add_co_i32 s39, s39, 8
	s_addk_co_i32 s31, 0xff80
	s_add_co_i32 s9, s9, 0xff800000
	s_add_nc_u64 s[2:3], s[2:3], 0x80
	s_cmp_lg_u32 s57, s41
	s_mov_b32 s16, s44
	s_cbranch_scc1 .LBB0_2
	s_mov_b32 s23, s10
	s_branch .LBB0_5
.LBB0_4:
	v_mov_b32_e32 v2, 0
	s_wait_alu depctr_vm_vsrc(6)
	s_delay_alu instid0(VALU_DEP_1) | instskip(SKIP_3) | instid1(VALU_DEP_3)
	v_dual_mov_b32 v3, v2 :: v_dual_mov_b32 v4, v2
	v_dual_mov_b32 v5, v2 :: v_dual_mov_b32 v6, v2
	v_dual_mov_b32 v7, v2 :: v_dual_mov_b32 v8, v2
	v_mov_b32_e32 v9, v2
	v_mov_b64_e32 v[12:13], v[4:5]
	v_mov_b64_e32 v[10:11], v[2:3]
	s_delay_alu instid0(VALU_DEP_4)
	v_mov_b64_e32 v[14:15], v[6:7]
	v_mov_b64_e32 v[22:23], v[6:7]
	v_mov_b64_e32 v[16:17], v[8:9]
	v_mov_b64_e32 v[24:25], v[8:9]
	v_mov_b64_e32 v[20:21], v[4:5]
	v_mov_b64_e32 v[18:19], v[2:3]
	v_mov_b64_e32 v[32:33], v[8:9]
	v_mov_b64_e32 v[30:31], v[6:7]
	v_mov_b64_e32 v[28:29], v[4:5]
	v_mov_b64_e32 v[26:27], v[2:3]
	v_mov_b64_e32 v[40:41], v[8:9]
	v_mov_b64_e32 v[38:39], v[6:7]
	v_mov_b64_e32 v[36:37], v[4:5]
	v_mov_b64_e32 v[34:35], v[2:3]
	v_mov_b64_e32 v[48:49], v[8:9]
	v_mov_b64_e32 v[46:47], v[6:7]
	v_mov_b64_e32 v[44:45], v[4:5]
	v_mov_b64_e32 v[42:43], v[2:3]
	v_mov_b64_e32 v[56:57], v[8:9]
	v_mov_b64_e32 v[54:55], v[6:7]
	v_mov_b64_e32 v[52:53], v[4:5]
	v_mov_b64_e32 v[50:51], v[2:3]
	v_mov_b64_e32 v[64:65], v[8:9]
	v_mov_b64_e32 v[62:63], v[6:7]
	v_mov_b64_e32 v[60:61], v[4:5]
	v_mov_b64_e32 v[58:59], v[2:3]
	v_mov_b64_e32 v[96:97], v[8:9]
	v_mov_b64_e32 v[94:95], v[6:7]
	v_mov_b64_e32 v[92:93], v[4:5]
	v_mov_b64_e32 v[90:91], v[2:3]
	v_mov_b64_e32 v[112:113], v[8:9]
	v_mov_b64_e32 v[110:111], v[6:7]
	v_mov_b64_e32 v[108:109], v[4:5]
	v_mov_b64_e32 v[106:107], v[2:3]
	v_mov_b64_e32 v[120:121], v[8:9]
	v_mov_b64_e32 v[118:119], v[6:7]
	v_mov_b64_e32 v[116:117], v[4:5]
	v_mov_b64_e32 v[114:115], v[2:3]
	v_mov_b64_e32 v[128:129], v[8:9]
	v_mov_b64_e32 v[126:127], v[6:7]
	v_mov_b64_e32 v[124:125], v[4:5]
	v_mov_b64_e32 v[122:123], v[2:3]
	v_mov_b64_e32 v[136:137], v[8:9]
	v_mov_b64_e32 v[134:135], v[6:7]
	v_mov_b64_e32 v[132:133], v[4:5]
	v_mov_b64_e32 v[130:131], v[2:3]
	v_mov_b64_e32 v[144:145], v[8:9]
	v_mov_b64_e32 v[142:143], v[6:7]
	v_mov_b64_e32 v[140:141], v[4:5]
	v_mov_b64_e32 v[138:139], v[2:3]
	v_mov_b64_e32 v[152:153], v[8:9]
	v_mov_b64_e32 v[150:151], v[6:7]
	v_mov_b64_e32 v[148:149], v[4:5]
	v_mov_b64_e32 v[146:147], v[2:3]
	v_mov_b64_e32 v[104:105], v[8:9]
	v_mov_b64_e32 v[102:103], v[6:7]
	v_mov_b64_e32 v[100:101], v[4:5]
	v_mov_b64_e32 v[98:99], v[2:3]
.LBB0_5:
	s_and_b32 s2, s0, -2
	s_delay_alu instid0(SALU_CYCLE_1) | instskip(NEXT) | instid1(SALU_CYCLE_1)
	s_sub_co_i32 s3, s51, s2
	s_cmp_lt_i32 s3, 2
	s_cbranch_scc1 .LBB0_7
	s_add_co_i32 s3, s23, 0x5000
	s_cmp_lg_u32 s23, 0xa000
	s_mov_b32 s15, 0
	s_cselect_b32 s3, s3, 0
	s_barrier_wait -1
	v_dual_add_nc_u32 v226, s3, v201 :: v_dual_add_nc_u32 v233, s3, v199
	s_bfe_i32 s7, s0, 0x10003
	s_lshl_b32 s0, s0, 2
	s_and_b32 s7, s7, 0x1200
	s_wait_alu depctr_va_vdst(0)
	ds_load_b128 v[202:205], v226
	ds_load_b128 v[206:209], v226 offset:32
	ds_load_b128 v[210:213], v226 offset:1280
	ds_load_b128 v[214:217], v226 offset:1312
	ds_load_b128 v[218:221], v226 offset:2560
	ds_load_b128 v[222:225], v226 offset:2592
	s_and_b32 s0, s0, 24
	s_wait_dscnt 0xc
	v_wmma_scale_f32_16x16x128_f8f6f4 v[98:105], v[66:73], v[186:193], v[98:105], v1, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4
	s_or_b32 s0, s0, s7
	s_wait_dscnt 0x6
	s_or_b32 s0, s0, 4
	v_wmma_scale_f32_16x16x128_f8f6f4 v[146:153], v[74:81], v[186:193], v[146:153], v1, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1
	v_add_nc_u32_e32 v231, s0, v200
	v_wmma_scale_f32_16x16x128_f8f6f4 v[138:145], v[82:89], v[186:193], v[138:145], v196, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4
	v_add_nc_u32_e32 v232, s0, v198
	s_barrier_signal -1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[130:137], v[154:161], v[186:193], v[130:137], v196, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1
	s_wait_alu depctr_va_vdst(0) depctr_vm_vsrc(6)
	ds_load_b128 v[198:201], v226 offset:3840
	s_wait_alu depctr_vm_vsrc(0)
	ds_load_b128 v[226:229], v226 offset:3872
	v_wmma_scale_f32_16x16x128_f8f6f4 v[90:97], v[154:161], v[170:177], v[90:97], v196, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1 matrix_b_scale:MATRIX_SCALE_ROW1
	s_barrier_wait -1
	s_add_co_i32 s2, s2, 3
	s_add_co_i32 s1, s23, s1
	s_ashr_i32 s3, s2, 31
	s_lshl_b32 s0, s2, 6
	s_lshl_b64 s[8:9], s[2:3], 6
	s_sub_co_i32 s6, s6, s0
	s_cmp_lt_i32 s2, s51
	s_add_nc_u64 s[2:3], s[8:9], s[42:43]
	s_cselect_b32 s0, 1, 0
	s_lshr_b32 s7, s6, 16
	s_bitset1_b32 s3, 31
	s_lshl_b32 s9, s6, 16
	s_or_b32 s10, s7, s26
	s_mov_b32 s12, 64
	s_mov_b32 s8, 0x6d00000
	v_wmma_scale_f32_16x16x128_f8f6f4 v[106:113], v[82:89], v[170:177], v[106:113], v196, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_b_scale:MATRIX_SCALE_ROW1
	tensor_load_to_lds s[0:3], s[8:15]
	ds_load_b32 v230, v231
	s_wait_alu depctr_vm_vsrc(0)
	ds_load_b32 v231, v231 offset:1152
	v_wmma_scale_f32_16x16x128_f8f6f4 v[114:121], v[74:81], v[170:177], v[114:121], v1, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1 matrix_b_scale:MATRIX_SCALE_ROW1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[122:129], v[66:73], v[170:177], v[122:129], v1, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_b_scale:MATRIX_SCALE_ROW1
	s_wait_alu depctr_va_vdst(0)
	ds_load_b32 v195, v232
	s_wait_alu depctr_vm_vsrc(0)
	ds_load_b32 v232, v232 offset:1152
	ds_load_b128 v[186:189], v233
	ds_load_b128 v[190:193], v233 offset:32
	v_wmma_scale_f32_16x16x128_f8f6f4 v[58:65], v[66:73], v[162:169], v[58:65], v1, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4
	v_wmma_scale_f32_16x16x128_f8f6f4 v[50:57], v[74:81], v[162:169], v[50:57], v1, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[42:49], v[82:89], v[162:169], v[42:49], v196, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4
	v_wmma_scale_f32_16x16x128_f8f6f4 v[34:41], v[154:161], v[162:169], v[34:41], v196, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1
	ds_load_b128 v[170:173], v233 offset:1280
	ds_load_b128 v[174:177], v233 offset:1312
	s_wait_alu depctr_va_vdst(0)
	ds_load_b128 v[162:165], v233 offset:2560
	ds_load_b128 v[166:169], v233 offset:2592
	v_wmma_scale_f32_16x16x128_f8f6f4 v[2:9], v[154:161], v[178:185], v[2:9], v196, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1 matrix_b_scale:MATRIX_SCALE_ROW1
	s_wait_tensorcnt 0x1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[10:17], v[82:89], v[178:185], v[10:17], v196, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_b_scale:MATRIX_SCALE_ROW1
	s_barrier_signal -1
	ds_load_b128 v[234:237], v233 offset:3840
	ds_load_b128 v[238:241], v233 offset:3872
	v_wmma_scale_f32_16x16x128_f8f6f4 v[18:25], v[74:81], v[178:185], v[18:25], v1, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1 matrix_b_scale:MATRIX_SCALE_ROW1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[26:33], v[66:73], v[178:185], v[26:33], v1, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_b_scale:MATRIX_SCALE_ROW1
	s_wait_dscnt 0x8
	v_dual_mov_b32 v194, v232 :: v_dual_mov_b32 v1, v230
	v_dual_mov_b32 v196, v231 :: v_dual_mov_b32 v154, v198
	v_dual_mov_b32 v155, v199 :: v_dual_mov_b32 v156, v200
	v_dual_mov_b32 v157, v201 :: v_dual_mov_b32 v158, v226
	v_dual_mov_b32 v159, v227 :: v_dual_mov_b32 v160, v228
	v_dual_mov_b32 v161, v229 :: v_dual_mov_b32 v82, v218
	v_dual_mov_b32 v83, v219 :: v_dual_mov_b32 v84, v220
	v_dual_mov_b32 v85, v221 :: v_dual_mov_b32 v86, v222
	v_dual_mov_b32 v87, v223 :: v_dual_mov_b32 v88, v224
	v_dual_mov_b32 v89, v225 :: v_dual_mov_b32 v74, v210
	v_dual_mov_b32 v75, v211 :: v_dual_mov_b32 v76, v212
	v_dual_mov_b32 v77, v213 :: v_dual_mov_b32 v78, v214
	v_dual_mov_b32 v79, v215 :: v_dual_mov_b32 v80, v216
	v_dual_mov_b32 v81, v217 :: v_dual_mov_b32 v66, v202
	v_dual_mov_b32 v67, v203 :: v_dual_mov_b32 v68, v204
	v_dual_mov_b32 v69, v205 :: v_dual_mov_b32 v70, v206
	v_dual_mov_b32 v71, v207 :: v_dual_mov_b32 v72, v208
	s_wait_dscnt 0x1
	v_dual_mov_b32 v73, v209 :: v_dual_mov_b32 v178, v234
	v_dual_mov_b32 v179, v235 :: v_dual_mov_b32 v180, v236
	s_wait_dscnt 0x0
	v_dual_mov_b32 v181, v237 :: v_dual_mov_b32 v182, v238
	v_dual_mov_b32 v183, v239 :: v_dual_mov_b32 v184, v240
	v_mov_b32_e32 v185, v241
.LBB0_7:
	s_wait_dscnt 0x6
	v_wmma_scale_f32_16x16x128_f8f6f4 v[98:105], v[66:73], v[186:193], v[98:105], v1, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4
	s_lshl_b32 s8, s50, 6
	v_wmma_scale_f32_16x16x128_f8f6f4 v[146:153], v[74:81], v[186:193], v[146:153], v1, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[138:145], v[82:89], v[186:193], v[138:145], v196, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4
	v_wmma_scale_f32_16x16x128_f8f6f4 v[130:137], v[154:161], v[186:193], v[130:137], v196, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1
	s_wait_dscnt 0x4
	v_wmma_scale_f32_16x16x128_f8f6f4 v[90:97], v[154:161], v[170:177], v[90:97], v196, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1 matrix_b_scale:MATRIX_SCALE_ROW1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[106:113], v[82:89], v[170:177], v[106:113], v196, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_b_scale:MATRIX_SCALE_ROW1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[114:121], v[74:81], v[170:177], v[114:121], v1, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1 matrix_b_scale:MATRIX_SCALE_ROW1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[122:129], v[66:73], v[170:177], v[122:129], v1, v195 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_b_scale:MATRIX_SCALE_ROW1
	s_wait_dscnt 0x2
	v_wmma_scale_f32_16x16x128_f8f6f4 v[58:65], v[66:73], v[162:169], v[58:65], v1, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4
	v_wmma_scale_f32_16x16x128_f8f6f4 v[50:57], v[74:81], v[162:169], v[50:57], v1, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[42:49], v[82:89], v[162:169], v[42:49], v196, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4
	v_wmma_scale_f32_16x16x128_f8f6f4 v[34:41], v[154:161], v[162:169], v[34:41], v196, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1
	s_wait_dscnt 0x0
	v_wmma_scale_f32_16x16x128_f8f6f4 v[2:9], v[154:161], v[178:185], v[2:9], v196, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1 matrix_b_scale:MATRIX_SCALE_ROW1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[10:17], v[82:89], v[178:185], v[10:17], v196, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_b_scale:MATRIX_SCALE_ROW1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[18:25], v[74:81], v[178:185], v[18:25], v1, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_a_scale:MATRIX_SCALE_ROW1 matrix_b_scale:MATRIX_SCALE_ROW1
	v_wmma_scale_f32_16x16x128_f8f6f4 v[26:33], v[66:73], v[178:185], v[26:33], v1, v194 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4 matrix_b_scale:MATRIX_SCALE_ROW1
	s_barrier_wait -1
	s_wait_tensorcnt 0x0
	s_wait_dscnt 0x0
	s_barrier_signal -1
	v_lshlrev_b32_e32 v0, 1, v0
	v_mul_u32_u24_e32 v1, 0x110, v197
	s_mul_i32 s9, s33, 0x2200
	s_lshl_b32 s6, s48, 2
	s_mov_b32 s7, 0
	v_and_b32_e32 v0, 32, v0
	s_ashr_i32 s1, s36, 31
	s_mov_b32 s0, s36
	s_mul_u64 s[2:3], s[6:7], s[34:35]
	s_add_co_i32 s49, s49, s38
	v_add3_u32 v70, v1, s9, v0
	s_mul_u64 s[0:1], s[2:3], s[0:1]
	s_sub_co_i32 s2, s37, s49
	s_add_nc_u64 s[0:1], s[0:1], s[4:5]
	s_add_co_i32 s12, s8, s40
	s_barrier_wait -1
	v_med3_i32 v0, s2, 0, 64
	s_mov_b32 s8, 1
	s_wait_alu depctr_va_vdst(0)
	ds_store_b128 v70, v[98:101]
	ds_store_b128 v70, v[102:105] offset:16
	ds_store_b128 v70, v[146:149] offset:64
	ds_store_b128 v70, v[150:153] offset:80
	ds_store_b128 v70, v[138:141] offset:128
	ds_store_b128 v70, v[142:145] offset:144
	ds_store_b128 v70, v[130:133] offset:192
	ds_store_b128 v70, v[134:137] offset:208
	ds_store_b128 v70, v[122:125] offset:4352
	ds_store_b128 v70, v[126:129] offset:4368
	ds_store_b128 v70, v[114:117] offset:4416
	ds_store_b128 v70, v[118:121] offset:4432
	ds_store_b128 v70, v[106:109] offset:4480
	ds_store_b128 v70, v[110:113] offset:4496
	ds_store_b128 v70, v[90:93] offset:4544
	ds_store_b128 v70, v[94:97] offset:4560
	s_wait_dscnt 0x0
	s_ashr_i32 s13, s12, 31
	s_sub_co_i32 s4, s36, s12
	s_lshl_b32 s6, s49, 2
	s_mul_u64 s[2:3], s[12:13], s[34:35]
	s_add_nc_u64 s[14:15], s[0:1], s[6:7]
	s_max_i32 s0, s4, 0
	s_lshl_b64 s[2:3], s[2:3], 2
	s_lshr_b32 s1, s0, 16
	s_add_nc_u64 s[10:11], s[14:15], s[2:3]
	s_lshl_b32 s0, s0, 16
	s_or_b32 s1, s1, 0x440000
	s_and_b32 s2, s35, 0xffff
	v_dual_mov_b32 v66, s0 :: v_dual_lshlrev_b32 v1, 16, v0
	v_dual_mov_b32 v67, s1 :: v_dual_mov_b32 v69, s34
	v_mov_b32_e32 v68, s2
	s_delay_alu instid0(VALU_DEP_3) | instskip(NEXT) | instid1(VALU_DEP_4)
	v_readfirstlane_b32 s1, v1
	v_readfirstlane_b32 s2, v66
	s_delay_alu instid0(VALU_DEP_4)
	v_readfirstlane_b32 s3, v67
	v_readfirstlane_b32 s5, v69
	v_mov_b32_e32 v66, 32
	v_readfirstlane_b32 s6, v68
	s_bitset1_b32 s11, 31
	s_mov_b32 s0, 0x20000
	s_mov_b32 s4, 32
	v_dual_mov_b32 v0, 0x20000 :: v_dual_mov_b32 v67, 0
	tensor_store_from_lds s[8:11], s[0:7]
	s_wait_tensorcnt 0x0
	s_wait_dscnt 0x0
	ds_store_b128 v70, v[58:61]
	ds_store_b128 v70, v[62:65] offset:16
	ds_store_b128 v70, v[50:53] offset:64
	ds_store_b128 v70, v[54:57] offset:80
	ds_store_b128 v70, v[42:45] offset:128
	ds_store_b128 v70, v[46:49] offset:144
	ds_store_b128 v70, v[34:37] offset:192
	ds_store_b128 v70, v[38:41] offset:208
	ds_store_b128 v70, v[26:29] offset:4352
	ds_store_b128 v70, v[30:33] offset:4368
	ds_store_b128 v70, v[18:21] offset:4416
	ds_store_b128 v70, v[22:25] offset:4432
	ds_store_b128 v70, v[10:13] offset:4480
	ds_store_b128 v70, v[14:17] offset:4496
	ds_store_b128 v70, v[2:5] offset:4544
	ds_store_b128 v70, v[6:9] offset:4560
	s_wait_dscnt 0x0
	s_or_b32 s2, s12, 32
	v_readfirstlane_b32 s0, v0
	s_sub_co_i32 s3, s36, s2
	v_readfirstlane_b32 s1, v1
	s_max_i32 s4, s3, 0
	s_ashr_i32 s3, s2, 31
	s_lshr_b32 s5, s4, 16
	s_lshl_b32 s4, s4, 16
	s_or_b32 s5, s5, 0x440000
	s_wait_alu depctr_vm_vsrc(1)
	v_dual_mov_b32 v2, s4 :: v_dual_mov_b32 v3, s5
	s_mul_u64 s[2:3], s[2:3], s[34:35]
	v_readfirstlane_b32 s4, v66
	s_lshl_b64 s[10:11], s[2:3], 2
	v_readfirstlane_b32 s2, v2
	v_readfirstlane_b32 s3, v3
	v_readfirstlane_b32 s5, v69
	v_readfirstlane_b32 s6, v68
	v_readfirstlane_b32 s7, v67
	s_add_nc_u64 s[10:11], s[14:15], s[10:11]
	s_delay_alu instid0(SALU_CYCLE_1) | instskip(NEXT) | instid1(SALU_CYCLE_1)
	s_bitset1_b32 s11, 31
	tensor_store_from_lds s[8:11], s[0:7]
	s_endpgm
.Lfunc_end0:
	.size	mxfp4_gemm_0, .Lfunc_end0-mxfp4_gemm_0
	.section	.rodata,"a",@progbits
	.p2align	6, 0x0
	.amdhsa_kernel mxfp4_gemm_0
		.amdhsa_group_segment_fixed_size 0
		.amdhsa_private_segment_fixed_size 0
		.amdhsa_kernarg_size 152
		.amdhsa_user_sgpr_count 2
		.amdhsa_user_sgpr_dispatch_ptr 0
		.amdhsa_user_sgpr_queue_ptr 0
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_user_sgpr_dispatch_id 0
		.amdhsa_user_sgpr_kernarg_preload_length 0
		.amdhsa_user_sgpr_kernarg_preload_offset 0
		.amdhsa_user_sgpr_private_segment_size 0
		.amdhsa_wavefront_size32 1
		.amdhsa_uses_dynamic_stack 0
		.amdhsa_enable_private_segment 0
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_system_sgpr_workgroup_id_y 1
		.amdhsa_system_sgpr_workgroup_id_z 1
		.amdhsa_system_sgpr_workgroup_info 0
		.amdhsa_system_vgpr_workitem_id 0
		.amdhsa_next_free_vgpr 253
		.amdhsa_next_free_sgpr 72
		.amdhsa_named_barrier_count 0
		.amdhsa_reserve_vcc 0
		.amdhsa_float_round_mode_32 0
		.amdhsa_float_round_mode_16_64 0
		.amdhsa_float_denorm_mode_32 3
		.amdhsa_float_denorm_mode_16_64 3
		.amdhsa_fp16_overflow 0
		.amdhsa_memory_ordered 1
		.amdhsa_forward_progress 1
		.amdhsa_inst_pref_size ((instprefsize(.Lfunc_end0-mxfp4_gemm_0)<<4)&4080)>>4
		.amdhsa_round_robin_scheduling 0
		.amdhsa_exception_fp_ieee_invalid_op 0
		.amdhsa_exception_fp_denorm_src 0
		.amdhsa_exception_fp_ieee_div_zero 0
		.amdhsa_exception_fp_ieee_overflow 0
		.amdhsa_exception_fp_ieee_underflow 0
		.amdhsa_exception_fp_ieee_inexact 0
		.amdhsa_exception_int_div_zero 0
	.end_amdhsa_kernel
	.text

	.set .Lmxfp4_gemm_0.num_vgpr, 253
	.set .Lmxfp4_gemm_0.num_agpr, 0
	.set .Lmxfp4_gemm_0.numbered_sgpr, 72
	.set .Lmxfp4_gemm_0.num_named_barrier, 0
	.set .Lmxfp4_gemm_0.private_seg_size, 0
	.set .Lmxfp4_gemm_0.uses_vcc, 0
	.set .Lmxfp4_gemm_0.uses_flat_scratch, 0
	.set .Lmxfp4_gemm_0.has_dyn_sized_stack, 0
	.set .Lmxfp4_gemm_0.has_recursion, 0
	.set .Lmxfp4_gemm_0.has_indirect_call, 0
	.p2alignl 7, 3214868480
	.fill 96, 4, 3214868480
	.section	.AMDGPU.gpr_maximums,"",@progbits
	.set amdgpu.max_num_vgpr, 0
	.set amdgpu.max_num_agpr, 0
	.set amdgpu.max_num_sgpr, 0
	.set amdgpu.max_num_named_barrier, 0
	.text
	.section	".note.GNU-stack","",@progbits
	.amdgpu_metadata
---
amdhsa.kernels:
  - .args:
      - .address_space:  global
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         8
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         16
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         24
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         32
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         40
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         48
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         56
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         64
        .size:           8
        .value_kind:     global_buffer
      - .offset:         72
        .size:           8
        .value_kind:     by_value
      - .offset:         80
        .size:           8
        .value_kind:     by_value
      - .offset:         88
        .size:           8
        .value_kind:     by_value
      - .offset:         96
        .size:           8
        .value_kind:     by_value
      - .offset:         104
        .size:           8
        .value_kind:     by_value
      - .offset:         112
        .size:           8
        .value_kind:     by_value
      - .offset:         120
        .size:           8
        .value_kind:     by_value
      - .offset:         128
        .size:           4
        .value_kind:     by_value
      - .offset:         132
        .size:           4
        .value_kind:     by_value
      - .offset:         136
        .size:           4
        .value_kind:     by_value
      - .offset:         140
        .size:           4
        .value_kind:     by_value
      - .offset:         144
        .size:           4
        .value_kind:     by_value
      - .offset:         148
        .size:           4
        .value_kind:     by_value
    .group_segment_fixed_size: 0
    .kernarg_segment_align: 8
    .kernarg_segment_size: 152
    .max_flat_workgroup_size: 128
    .name:           mxfp4_gemm_0
    .private_segment_fixed_size: 0
    .reqd_workgroup_size:
      - 128
      - 1
      - 1
    .sgpr_count:     72
    .sgpr_spill_count: 0
    .symbol:         mxfp4_gemm_0.kd
    .uniform_work_group_size: 1
    .uses_dynamic_stack: false
    .vgpr_count:     253
    .vgpr_spill_count: 0
    .wavefront_size: 32
amdhsa.target:   amdgcn-amd-amdhsa-unknown-gfx1250
amdhsa.version:
  - 1
  - 2
...

	.end_amdgpu_metadata
