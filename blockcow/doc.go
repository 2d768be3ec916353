// Package blockcow keeps the disks of sandboxes: immutable base images, and one writable reflink clone
// (FICLONE) per sandbox, in a directory on a filesystem that can share extents.
package blockcow
