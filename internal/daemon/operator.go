package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/mooncake-sidecar/sidecar/internal/admin/adminpb"
	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// ErrRefused: the daemon answered, and did not do what it was asked to. The text
// is the daemon's.
var ErrRefused = errors.New("refused")

// Operator asks a running lookupd what operators may ask. Errors of its calls are
// ErrNotRunning where no daemon answers, the context's, and ErrRefused.
type Operator struct {
	adminpb.AdminClient
	conn *grpc.ClientConn
}

// NewOperator returns an operator of the lookupd of a runtime directory, empty
// for the default. The caller closes it.
func NewOperator(dir string) (*Operator, error) {
	dir = existingDir(dir)
	conn, err := dialStore(dir)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, config.StoreSocket)
	return &Operator{adminpb.NewAdminClient(operatorConn{conn, path}), conn}, nil
}

// Close ends the connection.
func (o *Operator) Close() error { return o.conn.Close() }

// operatorConn says of a failed call what it means to an operator.
type operatorConn struct {
	*grpc.ClientConn
	path string
}

// Invoke implements grpc.ClientConnInterface.
func (c operatorConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	err := c.ClientConn.Invoke(ctx, method, args, reply, opts...)
	switch code := grpcstatus.Code(err); {
	case err == nil:
		return nil
	case code == codes.DeadlineExceeded, code == codes.Canceled, ctx.Err() != nil:
		// The daemon has the deadline too, and may give up a moment before ctx does.
		return fmt.Errorf("mooncake-lookupd does not answer at %s: %w", c.path, cmp.Or(ctx.Err(), context.DeadlineExceeded))
	case code == codes.Unavailable:
		return fmt.Errorf("%w: no mooncake-lookupd answers at %s; is it started, with this runtime_dir and as this user? (%s)",
			ErrNotRunning, c.path, grpcstatus.Convert(err).Message())
	case code == codes.Unimplemented:
		return fmt.Errorf("%w: this mooncake-lookupd is of an earlier version, which can't be operated; restart it", ErrRefused)
	}
	return fmt.Errorf("%w: %s", ErrRefused, grpcstatus.Convert(err).Message())
}
