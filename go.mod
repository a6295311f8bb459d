module github.com/mooncake-sidecar/sidecar

go 1.26
