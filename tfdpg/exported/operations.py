"""The operations of TensorFlow that an untrusted exported model may contain, reviewed for TensorFlow 2.21.

None of them reads or writes a file, uses the network, runs Python or native code from outside TensorFlow, prints, or
reaches state outside the loaded model. Some operations are not listed although TensorFlow does not mark them as
stateful: `ReadFile`, `MatchingFiles`, `ImmutableConst` (maps a file), `GenerateVocabRemapping`,
`InitializeTableFromTextFile`, the readers, queues and datasets, `DecodeProtoV2` and `EncodeProto` (read descriptors
from files), `DebugIdentity`, `Copy` and `CopyHost` (write to debug URLs), `PyFuncStateless`, `XlaCustomCall` (calls
native code), `Abort` (ends the process), and the decoders of images, audio and serialized data. An operation that a
later version of TensorFlow adds is refused until it is reviewed and listed here.
"""

STATELESS = frozenset(
    """
    Abs AccumulateNV2 Acos Acosh Add AddN AddV2 AdjustContrast AdjustContrastv2 AdjustHue AdjustSaturation All Angle
    Any ApproxTopK ApproximateEqual ArgMax ArgMin AsString Asin Asinh Atan Atan2 Atanh AvgPool AvgPool3D AvgPool3DGrad
    AvgPoolGrad BandedTriangularSolve BatchMatMul BatchMatMulV2 BatchMatMulV3 BatchNormWithGlobalNormalization
    BatchToSpace BatchToSpaceND BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1
    BesselK1e BesselY0 BesselY1 Betainc BiasAdd BiasAddGrad BiasAddV1 Bincount Bitcast BitwiseAnd BitwiseOr BitwiseXor
    BroadcastArgs BroadcastGradientArgs BroadcastTo Bucketize Cast Ceil Cholesky CholeskyGrad ClipByValue
    CombinedNonMaxSuppression Complex ComplexAbs Concat ConcatOffset ConcatV2 Conj ConjugateTranspose Const
    ControlTrigger Conv2D Conv2DBackpropFilter Conv2DBackpropFilterV2 Conv2DBackpropInput Conv2DBackpropInputV2 Conv3D
    Conv3DBackpropFilter Conv3DBackpropFilterV2 Conv3DBackpropInput Conv3DBackpropInputV2 Cos Cosh CropAndResize
    CropAndResizeGradBoxes CropAndResizeGradImage Cross Cumprod Cumsum CumulativeLogsumexp DataFormatDimMap
    DataFormatVecPermute Dawsn DenseBincount DenseCountSparseOutput DenseToDenseSetOperation DenseToSparseSetOperation
    DepthToSpace DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput
    Dequantize Diag DiagPart Digamma Dilation2D Dilation2DBackpropFilter Dilation2DBackpropInput Div DivNoNan
    DrawBoundingBoxes DrawBoundingBoxesV2 DynamicPartition DynamicStitch EditDistance Eig Einsum Elu EluGrad
    EmptyTensorList EmptyTensorMap EnsureShape Enter Equal Erf Erfc Erfinv EuclideanNorm Exit Exp ExpandDims Expint
    Expm1 ExtractGlimpse ExtractGlimpseV2 ExtractImagePatches ExtractVolumePatches FFT FFT2D FFT3D FFTND
    FakeQuantWithMinMaxArgs FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsGradient
    FakeQuantWithMinMaxVarsPerChannel FakeQuantWithMinMaxVarsPerChannelGradient Fill Floor FloorDiv FloorMod
    FractionalAvgPool FractionalAvgPoolGrad FractionalMaxPool FractionalMaxPoolGrad FresnelCos FresnelSin
    FusedBatchNorm FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3 FusedBatchNormV2 FusedBatchNormV3
    Gather GatherNd GatherV2 Greater GreaterEqual HSVToRGB HistogramFixedWidth IFFT IFFT2D IFFT3D IFFTND IRFFT IRFFT2D
    IRFFT3D IRFFTND Identity IdentityN Igamma IgammaGradA Igammac Imag ImageProjectiveTransformV2
    ImageProjectiveTransformV3 InTopK InTopKV2 Inv InvGrad Invert InvertPermutation IsFinite IsInf IsNan
    IsotonicRegression KthOrderStatistic L2Loss LRN LRNGrad LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma
    LinSpace ListDiff Log Log1p LogMatrixDeterminant LogSoftmax LogicalAnd LogicalNot LogicalOr LoopCond LowerBound Lu
    MatMul MatrixBandPart MatrixDeterminant MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2
    MatrixDiagV3 MatrixExponential MatrixInverse MatrixLogarithm MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3
    MatrixSolve MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve Max MaxPool MaxPool3D MaxPool3DGrad
    MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad MaxPoolGradGradV2 MaxPoolGradGradWithArgmax MaxPoolGradV2
    MaxPoolGradWithArgmax MaxPoolV2 MaxPoolWithArgmax Maximum Mean Merge Min Minimum MirrorPad MirrorPadGrad Mod Mul
    MulNoNan Ndtri Neg NextAfter NextIteration NoOp NonMaxSuppression NonMaxSuppressionV2 NonMaxSuppressionV3
    NonMaxSuppressionV4 NonMaxSuppressionV5 NonMaxSuppressionWithOverlaps NotEqual NthElement OneHot OnesLike Pack Pad
    PadV2 ParallelConcat ParallelDynamicStitch PartitionedCall Placeholder PlaceholderV2 PlaceholderWithDefault
    Polygamma PopulationCount Pow PreventGradient Prod Qr QuantizeAndDequantize QuantizeAndDequantizeV2
    QuantizeAndDequantizeV3 QuantizeAndDequantizeV4 QuantizeAndDequantizeV4Grad QuantizeDownAndShrinkRange QuantizeV2
    RFFT RFFT2D RFFT3D RFFTND RGBToHSV RaggedBincount RaggedCountSparseOutput RaggedCross RaggedFillEmptyRows
    RaggedFillEmptyRowsGrad RaggedGather RaggedRange RaggedTensorFromVariant RaggedTensorToSparse RaggedTensorToTensor
    RaggedTensorToVariant RaggedTensorToVariantGradient RandomGammaGrad RandomIndexShuffle Range Rank Real RealDiv
    Reciprocal ReciprocalGrad ReduceJoin RegexFullMatch RegexReplace Relu Relu6 Relu6Grad ReluGrad RequantizationRange
    RequantizationRangePerChannel Requantize RequantizePerChannel Reshape ResizeArea ResizeBicubic ResizeBicubicGrad
    ResizeBilinear ResizeBilinearGrad ResizeNearestNeighbor ResizeNearestNeighborGrad Reverse ReverseSequence
    ReverseV2 RightShift Rint Roll Round Rsqrt RsqrtGrad ScaleAndTranslate ScaleAndTranslateGrad ScatterNd
    ScatterNdNonAliasingAdd SegmentMax SegmentMaxV2 SegmentMean SegmentMin SegmentMinV2 SegmentProd SegmentProdV2
    SegmentSum SegmentSumV2 Select SelectV2 SelfAdjointEig SelfAdjointEigV2 Selu SeluGrad SetSize Shape ShapeN Sigmoid
    SigmoidGrad Sign Sin Sinh Size Slice SobolSample Softmax SoftmaxCrossEntropyWithLogits Softplus SoftplusGrad
    Softsign SoftsignGrad SpaceToBatch SpaceToBatchND SpaceToDepth SparseAdd SparseAddGrad SparseBincount SparseConcat
    SparseCountSparseOutput SparseCross SparseCrossV2 SparseDenseCwiseAdd SparseDenseCwiseDiv SparseDenseCwiseMul
    SparseFillEmptyRows SparseFillEmptyRowsGrad SparseMatMul SparseReduceMax SparseReduceMaxSparse SparseReduceSum
    SparseReduceSumSparse SparseReorder SparseReshape SparseSegmentMean SparseSegmentMeanGrad SparseSegmentMeanGradV2
    SparseSegmentMeanWithNumSegments SparseSegmentSqrtN SparseSegmentSqrtNGrad SparseSegmentSqrtNGradV2
    SparseSegmentSqrtNWithNumSegments SparseSegmentSum SparseSegmentSumGrad SparseSegmentSumGradV2
    SparseSegmentSumWithNumSegments SparseSlice SparseSliceGrad SparseSoftmax SparseSoftmaxCrossEntropyWithLogits
    SparseSparseMaximum SparseSparseMinimum SparseSplit SparseTensorDenseAdd SparseTensorDenseMatMul SparseToDense
    SparseToSparseSetOperation Spence Split SplitV Sqrt SqrtGrad Square SquaredDifference Squeeze StatelessCase
    StatelessIf StatelessMultinomial StatelessParameterizedTruncatedNormal StatelessRandomBinomial
    StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg
    StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomPoisson StatelessRandomUniform
    StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomUniformInt
    StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessSampleDistortedBoundingBox StatelessShuffle
    StatelessTruncatedNormal StatelessTruncatedNormalV2 StatelessWhile StaticRegexFullMatch StaticRegexReplace
    StopGradient StridedSlice StridedSliceGrad StringFormat StringJoin StringLength StringLower StringNGrams
    StringSplit StringSplitV2 StringStrip StringToHashBucket StringToHashBucketFast StringToHashBucketStrong
    StringToNumber StringUpper Sub Substr Sum Svd Switch Tan Tanh TanhGrad TensorListConcat TensorListConcatLists
    TensorListConcatV2 TensorListElementShape TensorListFromTensor TensorListGather TensorListGetItem TensorListLength
    TensorListPopBack TensorListPushBack TensorListPushBackBatch TensorListReserve TensorListResize TensorListScatter
    TensorListScatterIntoExistingList TensorListScatterV2 TensorListSetItem TensorListSplit TensorListStack
    TensorMapErase TensorMapHasKey TensorMapInsert TensorMapLookup TensorMapSize TensorMapStackKeys TensorScatterAdd
    TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate TensorStridedSliceUpdate Tile TileGrad
    ToBool TopK TopKV2 Transpose TridiagonalMatMul TridiagonalSolve TruncateDiv TruncateMod UniformDequantize
    UniformQuantize UniformRequantize Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 Unpack UnravelIndex
    UnsortedSegmentJoin UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum UpperBound Where
    Xdivy Xlog1py Xlogy ZerosLike Zeta
    """.split()
)
"""Arithmetic, shapes, strings, lists, control flow and random numbers from given seeds."""

STATEFUL = frozenset(
    """
    AnonymousHashTable AnonymousMutableDenseHashTable AnonymousMutableHashTable AnonymousMutableHashTableOfTensors
    Assert AssignAddVariableOp AssignSubVariableOp AssignVariableOp Case CheckNumerics CheckNumericsV2
    DestroyResourceOp DisableCopyOnRead Empty HashTableV2 If InitializeTableV2 LookupTableExportV2 LookupTableFindV2
    LookupTableImportV2 LookupTableInsertV2 LookupTableRemoveV2 LookupTableSizeV2 Multinomial MutableDenseHashTableV2
    MutableHashTableOfTensorsV2 MutableHashTableV2 ParameterizedTruncatedNormal RandomGamma RandomPoissonV2
    RandomShuffle RandomStandardNormal RandomUniform RandomUniformInt ReadVariableOp ResourceGather ResourceGatherNd
    ResourceScatterAdd ResourceScatterDiv ResourceScatterMax ResourceScatterMin ResourceScatterMul
    ResourceScatterNdAdd ResourceScatterNdMax ResourceScatterNdMin ResourceScatterNdSub ResourceScatterNdUpdate
    ResourceScatterSub ResourceScatterUpdate ResourceStridedSliceAssign RngReadAndSkip RngSkip StatefulPartitionedCall
    StatefulRandomBinomial StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform StatefulUniformFullInt
    StatefulUniformInt StatelessRandomGetAlg TensorArrayCloseV3 TensorArrayConcatV3 TensorArrayGatherV3
    TensorArrayGradV3 TensorArrayGradWithShape TensorArrayReadV3 TensorArrayScatterV3 TensorArraySizeV3
    TensorArraySplitV3 TensorArrayV3 TensorArrayWriteV3 TruncatedNormal VarHandleOp VarIsInitializedOp VariableShape
    While
    """.split()
)
"""Variables, tables and arrays in memory, control flow over them, random numbers, and assertions."""

SAVER = frozenset({"MergeV2Checkpoints", "RestoreV2", "SaveV2", "ShardedFilename"})
"""The file operations of the saver, which only the functions of TensorFlow's own saver may contain."""
