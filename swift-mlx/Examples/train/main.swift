// A linear layer learns a sum, data-parallel:
//
//     swift build --product train
//     comity launch -n 4 -- .build/debug/train

import ComityMLX
import MLX
import MLXNN
import MLXOptimizers

#if os(Linux)
    // MLX's default device is the GPU, also where there is none.
    Device.setDefault(device: .cpu)
#endif

let group = try MLXDistributed.initialize()
MLXRandom.seed(0)
let model = Linear(8, 1)
let optimizer = SGD(learningRate: 0.1)
let step = valueAndGrad(model: model) { (model: Linear, x: MLXArray, y: MLXArray) in
    mseLoss(predictions: model(x), targets: y)
}

// Each rank has samples of its own.
MLXRandom.seed(UInt64(group.rank))
let x = MLXRandom.normal([32, 8])
let y = x.sum(axis: -1, keepDims: true)
for epoch in 1...20 {
    let (loss, gradients) = step(model, x, y)
    optimizer.update(model: model, gradients: try averageGradients(gradients))
    eval(model, optimizer)
    let mean = try group.allSum(loss) / group.size
    if group.rank == 0, epoch % 10 == 0 { print("epoch \(epoch): loss \(mean.item(Float.self))") }
}
