// Command versitygw serves one bucket of a directory over S3 on a loopback port,
// with versitygw as a library: a real S3 server of other hands to test against.
//
//	versitygw -dir DIR -bucket NAME -access KEY -secret SECRET [-users KEY,KEY...] [-versions]
//
// The users have the same secret and no rights but those that the bucket's policy gives them.
//
// It prints its URL when it serves, and ends with its standard input.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

func main() {
	dir := flag.String("dir", "", "directory that the bucket lies in; made when absent")
	bucket := flag.String("bucket", "test", "bucket that is made at start")
	access := flag.String("access", "", "access key id")
	secret := flag.String("secret", "", "secret access key")
	users := flag.String("users", "", "access key ids of users without rights of their own, by commas")
	versions := flag.Bool("versions", false, "keep versions of the objects of buckets that ask for it")
	flag.Parse()
	stdout := os.Stdout
	os.Stdout = os.Stderr // the library prints there
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin) // the parent's death closes it
		cancel()
	}()
	if err := serve(ctx, stdout, *dir, *bucket, *access, *secret, *versions, strings.FieldsFunc(*users, func(r rune) bool { return r == ',' })); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "versitygw:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, stdout io.Writer, dir, bucket, access, secret string, versions bool, users []string) error {
	root := filepath.Join(dir, "data")
	if err := os.MkdirAll(filepath.Join(root, bucket), 0o755); err != nil {
		return err
	}
	store, opts, err := metadata(dir, root, len(users) == 0)
	if err != nil {
		return err
	}
	if versions {
		opts.VersioningDir = filepath.Join(dir, "versions")
		if err := os.MkdirAll(opts.VersioningDir, 0o755); err != nil {
			return err
		}
	}
	be, err := posix.New(root, store, opts)
	if err != nil {
		return err
	}
	defer be.Shutdown()
	var iam auth.IAMService
	if len(users) > 0 {
		if iam, err = accounts(filepath.Join(dir, "iam"), auth.Account{Access: access, Secret: secret, Role: auth.RoleAdmin}, users); err != nil {
			return err
		}
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		done <- embedgw.RunVersityGW(ctx, be, &embedgw.Config{
			RootUserAccess: access, RootUserSecret: secret, Region: "us-east-1",
			Ports: []string{port}, MaxConnections: 4096, MaxRequests: 4096, MultipartMaxParts: 10000,
			Quiet: true, KeepAlive: true, IAMService: iam,
		})
	}()
	if err := await(port, done); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "http://"+port)
	return <-done
}

// accounts makes users of the lowest role.
func accounts(dir string, root auth.Account, users []string) (auth.IAMService, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	iam, err := auth.NewInternal(root, dir)
	for _, u := range users {
		if err == nil {
			err = iam.CreateAccount(auth.Account{Access: u, Secret: root.Secret, Role: auth.RoleUser})
		}
	}
	return iam, err
}

// metadata lives in extended attributes where the file system has them, else beside the objects.
// A policy for many users is larger than the extended attributes of ext4, which share a block.
func metadata(dir, root string, attributes bool) (meta.MetadataStorer, posix.PosixOpts, error) {
	opts := posix.PosixOpts{Concurrency: 256}
	if attributes && (meta.XattrMeta{}).Test(root) == nil {
		return meta.XattrMeta{}, opts, nil
	}
	opts.SideCarDir = filepath.Join(dir, "meta")
	if err := os.MkdirAll(opts.SideCarDir, 0o755); err != nil {
		return nil, opts, err
	}
	side, err := meta.NewSideCar(opts.SideCarDir)
	return side, opts, err
}

// freePort finds a port; the library takes addresses, not listeners.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func await(addr string, done <-chan error) error {
	for range 1000 {
		if c, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
			return c.Close()
		}
		select {
		case err := <-done:
			return fmt.Errorf("ended before it served: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return errors.New("does not serve")
}
