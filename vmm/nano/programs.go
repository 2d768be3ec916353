package nano

// Program is a nano guest.
type Program struct {
	Name string
	// Code is position-independent and is entered at its first byte.
	Code []byte
	// User has the program start in user mode (CPL 3) with system calls going to the byte at Syscall.
	User    bool
	Syscall int
}

// CounterAddr is where Counter keeps the half of its count that lives in memory, as 64 bits.
const CounterAddr = 0x100000

// Counter counts in memory and in a register, and writes both to the serial port as one line of two
// hexadecimal numbers of eight digits for each step.
var Counter = Program{Name: "counter", Code: []byte{
	0x49, 0xff, 0xc4, //                         step: inc r12
	0x48, 0xff, 0x04, 0x25, 0x00, 0x00, 0x10, 0, //    inc qword [CounterAddr]
	0xba, 0xf8, 0x03, 0x00, 0x00, //                   mov edx, 0x3f8
	0x48, 0x8b, 0x1c, 0x25, 0x00, 0x00, 0x10, 0, //    mov rbx, [CounterAddr]
	0xb9, 0x08, 0x00, 0x00, 0x00, //                   mov ecx, 8
	0xc1, 0xc3, 0x04, //                         mem:  rol ebx, 4
	0x89, 0xd8, //                                     mov eax, ebx
	0x24, 0x0f, //                                     and al, 15
	0x04, 0x30, //                                     add al, '0'
	0x3c, 0x39, //                                     cmp al, '9'
	0x76, 0x02, //                                     jbe +2
	0x04, 0x27, //                                     add al, 'a'-'9'-1
	0xee,       //                                     out dx, al
	0xff, 0xc9, //                                     dec ecx
	0x75, 0xec, //                                     jnz mem
	0xb0, 0x20, //                                     mov al, ' '
	0xee,             //                               out dx, al
	0x44, 0x89, 0xe3, //                               mov ebx, r12d
	0xb9, 0x08, 0x00, 0x00, 0x00, //                   mov ecx, 8
	0xc1, 0xc3, 0x04, //                         reg:  rol ebx, 4
	0x89, 0xd8, //                                     mov eax, ebx
	0x24, 0x0f, //                                     and al, 15
	0x04, 0x30, //                                     add al, '0'
	0x3c, 0x39, //                                     cmp al, '9'
	0x76, 0x02, //                                     jbe +2
	0x04, 0x27, //                                     add al, 'a'-'9'-1
	0xee,       //                                     out dx, al
	0xff, 0xc9, //                                     dec ecx
	0x75, 0xec, //                                     jnz reg
	0xb0, 0x0a, //                                     mov al, '\n'
	0xee,       //                                     out dx, al
	0xeb, 0xab, //                                     jmp step
}}

// Pulse writes line feeds to the serial port as fast as it can: wherever it is stopped, its next two
// instructions leave the guest.
var Pulse = Program{Name: "pulse", Code: []byte{
	0xba, 0xf8, 0x03, 0x00, 0x00, //       mov edx, 0x3f8
	0xb0, 0x0a, //                         mov al, '\n'
	0xee,       //                   more: out dx, al
	0xeb, 0xfd, //                         jmp more
}}

// PowerOff powers the machine off.
var PowerOff = Program{Name: "power off", Code: []byte{
	0xba, 0x00, 0x06, 0x00, 0x00, // mov edx, 0x600
	0xb0, 0x34, //                   mov al, sleep type 5, enable
	0xee,       //                   out dx, al
	0xeb, 0xfe, //                   jmp $
}}

// Reset resets the machine through the keyboard controller.
var Reset = Program{Name: "reset", Code: []byte{
	0xb0, 0xfe, // mov al, 0xfe
	0xe6, 0x64, // out 0x64, al
	0xeb, 0xfe, // jmp $
}}

// TripleFault raises an exception without having an interrupt table.
var TripleFault = Program{Name: "triple fault", Code: []byte{
	0x0f, 0x0b, // ud2
}}

// Device talks to the first virtio device: it reads the device's first register, writes what it read to the
// device's configuration space, and notifies queues 1 and 0.
var Device = Program{Name: "device", Code: []byte{
	0xbb, 0x00, 0x00, 0x00, 0xd0, //                         mov ebx, 0xd0000000
	0x8b, 0x03, //                                           mov eax, [rbx]
	0x89, 0x83, 0x00, 0x01, 0x00, 0x00, //                   mov [rbx+0x100], eax
	0xc7, 0x43, 0x50, 0x01, 0x00, 0x00, 0x00, //             mov dword [rbx+0x50], 1
	0xc7, 0x43, 0x50, 0x00, 0x00, 0x00, 0x00, //             mov dword [rbx+0x50], 0
	0xeb, 0xfe, //                                           jmp $
}}

// syscallCPL makes a system call and writes the code segment's selector, whose low two bits are the
// privilege level, to the first virtio device's configuration space.
var syscallCPL = Program{Name: "syscall", User: true, Syscall: 2, Code: []byte{
	0x0f, 0x05, //                         syscall
	0x8c, 0xc8, //                         mov eax, cs
	0xbb, 0x00, 0x01, 0x00, 0xd0, //       mov ebx, 0xd0000100
	0x89, 0x03, //                         mov [rbx], eax
	0xeb, 0xfe, //                         jmp $
}}
